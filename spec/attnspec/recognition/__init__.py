"""Recognising attention code as people write it: by names first, then by small experiments.

Names suggest, experiments decide, a declaration overrides both. What was found is said in one line
each; two readings that both fit are a question to the user, never a silent choice.
"""

from .cached import recognise
from .findings import Finding, Question, Recognition
from .toml import as_toml

__all__ = ["Finding", "Question", "Recognition", "as_toml", "recognise"]
