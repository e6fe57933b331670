"""What is generated before the site is built; run `docs/_build/generate.py`."""
