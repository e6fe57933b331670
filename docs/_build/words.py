"""The words of generated parts, in each language of the site; they lie in `words.toml`."""

import tomllib
from pathlib import Path

LANGUAGES = ("en", "zh")
_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

WORDS: dict[str, dict[str, str]] = _DATA["words"]
AXES_ZH: dict[str, str] = _DATA["axes"]["zh"]
PATHS_ZH: dict[str, str] = _DATA["paths"]["zh"]
# For each stage: its name, and what it does.
STAGES_ZH: dict[str, tuple[str, str]] = {
    name: (title, said) for name, (title, said) in _DATA["stages"]["zh"].items()
}


def check_words(stages: set[str], axes: set[str], paths: set[str]) -> list[str]:
    """Return what a language lacks; a build with anything in this list fails."""
    missing = [f"words.toml: {k} is not in every language" for k in set(WORDS["en"]) ^ set(WORDS["zh"])]
    for name, here, wanted in (
        ("stages", set(STAGES_ZH), stages),
        ("axes", set(AXES_ZH), axes),
        ("paths", set(PATHS_ZH), paths),
    ):
        missing += [f"words.toml: {name} lacks {k}" for k in sorted(wanted - here)]
        missing += [
            f"words.toml: {name} has {k}, which the contract no longer has" for k in sorted(here - wanted)
        ]
    return missing
