"""The shape table, a section for each stage, and the data of the explorer."""

import inspect
import json
import re

from attnspec import stages
from attnspec._axes import AXES
from attnspec._table import STAGES, Argument, Stage

from . import costs, documents, links
from .site import Output, cell, code, fence, formula, table
from .words import AXES_ZH, PATHS_ZH, STAGES_ZH, WORDS, check_words

assert stages  # imported for the table that it fills


def write(out: Output) -> None:
    """Write the parts for each language.

    Raises:
        SystemExit: If a language lacks the name of a stage or an axis.
    """
    missing = check_words(set(STAGES), {a.name for a in AXES}, {s.path for s in STAGES.values()})
    if missing:
        raise SystemExit("\n".join(missing))
    for language, words in WORDS.items():
        up = "" if language == "en" else "../"
        out.part(f"{language}/stage-table.md", stage_table(language, words))
        out.part(f"{language}/axes.md", axis_table(language, words))
        out.part(
            f"{language}/stage-sections.md",
            "\n".join(section(s, language, words, up) for s in STAGES.values()),
        )
    data = json.dumps(costs.as_data(), ensure_ascii=False).replace("</", "<\\/")
    out.part("explorer-data.md", f'<script type="application/json" id="stages-data">{data}</script>\n')


def name_of(stage: Stage, language: str) -> str:
    """Return a stage's name in a language."""
    return stage.name if language == "en" else STAGES_ZH[stage.function.__name__][0]


def anchor(stage: Stage) -> str:
    """Return the anchor of a stage's section: its function's name, in every language."""
    return stage.function.__name__


def stage_table(language: str, words: dict[str, str]) -> str:
    """Return the table of all stages, tensors only; weights stand in the sections."""
    rows = []
    for stage in STAGES.values():
        takes = [a for a in stage.arguments if a.name not in ("weight", "bias") or stage.row == "bias"]
        name = f"[{name_of(stage, language)}](#{anchor(stage)})"
        path = stage.path if language == "en" else PATHS_ZH[stage.path]
        rows.append((
            name + (f" ({words['optional']})" if stage.optional else ""),
            ", ".join(code(str(a)) for a in takes), code(str(stage.result)), path,
        ))  # fmt: skip
    return table((words["stage"], words["takes"], words["gives"], words["path"]), rows)


def axis_table(language: str, words: dict[str, str]) -> str:
    """Return the axis vocabulary."""
    rows = [
        (code(a.name), a.meaning if language == "en" else AXES_ZH[a.name], ", ".join(map(code, a.also)))
        for a in AXES
    ]
    return table((words["axis"], words["meaning"], words["also"]), rows)


def section(stage: Stage, language: str, words: dict[str, str], up: str) -> str:
    """Return everything about one stage."""
    name = stage.function.__name__
    said = description(stage) if language == "en" else STAGES_ZH[name][1]
    parts = [f"### {name_of(stage, language)} {{ #{name} }}\n", f"{said}\n", formula(stage.formula)]
    parts += [fence(signature(stage), "python")]
    rows = [(code(a.name), code(str(a)), kind(a, words)) for a in stage.arguments]
    rows.append((words["result"], code(str(stage.result)), kind(stage.result, words)))
    parts += [table((words["argument"], words["shape"], words["kind"]), rows)]
    found = documents.row(stage.row)
    if found is None:
        parts.append(f"{words['document_new']}\n")
    else:
        step, operation, shape = found
        parts.append(f"{words['document']}: **{step}** · `{operation}` · `{shape}`\n")
    if stage.clauses:
        parts.append(f"{words['clauses']}: {links.clause_list(stage.clauses, up=up)}\n")
    return "\n".join(part for part in parts if part)


def description(stage: Stage) -> str:
    """Return the docstring up to its sections, in which clauses and arguments stand."""
    text = inspect.getdoc(stage.function) or ""
    return re.split(r"\n\n(?:Args|Returns|Raises|Clauses):", text)[0]


def signature(stage: Stage) -> str:
    """Return the signature as it is written in the source."""
    source = inspect.getsource(stage.function)
    found = re.search(r"^def .*?:$(?=\n    (?:r?\"\"\"))", source, re.DOTALL | re.MULTILINE)
    assert found is not None, stage.name
    return found[0].removesuffix(":")


def kind(argument: Argument, words: dict[str, str]) -> str:
    """Return the kind of numbers that a tensor holds."""
    return cell(argument.kind + (f" ({words['optional']})" if argument.optional else ""))
