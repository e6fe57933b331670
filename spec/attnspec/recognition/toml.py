"""Writing down what was recognised, to be corrected and committed as attnspec.toml."""

import json
from collections.abc import Mapping
from typing import Any

from .findings import Recognition


def as_toml(recognition: Recognition) -> str:
    """Return a recognition as a table of attnspec.toml, its findings and questions as comments."""
    said = recognition.declaration.as_dict()
    if "call" in said:
        said.pop("arguments", None)
    name = json.dumps(recognition.name, ensure_ascii=False)
    lines = [f"[declare.{name}]"]
    lines += [f"# {finding} ({finding.how})" for finding in recognition.findings]
    lines += [f"# question, {q.clause}: {q.text}" for q in recognition.questions]
    lines += [f"{key} = {_value(value)}" for key, value in said.items() if not isinstance(value, Mapping)]
    for key, table in said.items():
        if isinstance(table, Mapping):
            lines += ["", f"[declare.{name}.{key}]"]
            lines += [
                f"{json.dumps(inner, ensure_ascii=False)} = {_value(value)}" for inner, value in table.items()
            ]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)
