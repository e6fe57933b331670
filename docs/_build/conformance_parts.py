"""The conformance matrix, the kill table and the soak's figures."""

import json
from typing import Any

from attnspec import clauses
from attnspec._clauses import CONTRACT_VERSION

from . import links
from .clause_pages import kill_table
from .implementation_pages import verdict
from .site import ROOT, Output, code, number, prose, table

FULL = ROOT / "tests" / "defects" / "full_table.json"
SEEDS = ROOT / "tests" / "soak" / "seeds.json"
SOAK = ROOT / "tests" / "soak" / "results.json"
NAMED = ROOT / "tests" / "defects" / "fingerprint_table.json"


def write(out: Output, found: dict[str, dict[str, Any]]) -> None:
    """Write the parts of the page, and the page of the kill table."""
    out.part("matrix.md", matrix({name: entry["check"] for name, entry in found.items()}))
    table_of_kills = kill_table()
    out.part("kills.md", kills(table_of_kills))
    out.part("soak.md", soak())
    out.page(
        "implementations/kill-table.md",
        "Kill table",
        "Every seeded defect of the bank, and the clauses that catch it.",
        everything(table_of_kills),
    )


def matrix(checks: dict[str, dict[str, Any]]) -> str:
    """Return the matrix: implementations by chapters; every cell leads to the details."""
    chapters = [
        c for c in clauses().chapters if any(c.name in check["chapters"] for check in checks.values())
    ]
    headings = ["implementation", "verdict", *(f"[{c.title}](clauses/{c.name}.md)" for c in chapters)]
    rows = []
    for name, check in checks.items():
        place = f"implementations/{name}.md"
        cells = []
        for chapter in chapters:
            held, ran = check["chapters"].get(chapter.name, (0, 0))
            words = "–" if not ran else str(ran) if held == ran else f"**{held}/{ran}**"
            cells.append(f"[{words}]({place}#conformance)" if ran else words)
        rows.append([f"[{name}]({place})", verdict(check), *cells])
    profile = next(iter(checks.values()))["profile"]
    return (
        f"Contract {CONTRACT_VERSION}, profile `{profile}`, on the CPU, run when this site was built.\n\n"
        + table(headings, rows)
    )


def kills(found: dict[str, Any]) -> str:
    """Return the figures of the kill table, by family."""
    if not found["defects"]:
        return "The kill table has not been made in this checkout: `nox -s defects` makes it.\n"
    families: dict[str, list[dict[str, Any]]] = {}
    for defect in found["defects"].values():
        families.setdefault(defect["family"], []).append(defect)
    rows = []
    for family, defects in sorted(families.items(), key=lambda item: -len(item[1])):
        caught = sum(any(k["status"] in ("failed", "question") for k in d["kills"].values()) for d in defects)
        rows.append((family, str(len(defects)), str(caught)))
    summary = found["summary"]
    said = f"{summary['caught']} of {summary['defects']} seeded defects are caught."
    return f"{said} [All of them](implementations/kill-table.md).{names()}{every_clause()}\n\n" + table(
        ("family", "defects", "caught"), rows
    )


def names() -> str:
    """Return how many mistakes a report calls by their name; nothing where that was not measured."""
    if not NAMED.exists():
        return ""
    found = json.loads(NAMED.read_text(encoding="utf-8"))["summary"]
    wrong = len(found["wrong"])
    return (
        f" {found['equal_a_reference']} of them equal a [known mistake](mistakes.md): the report names"
        f" {found['right']} rightly and {wrong or 'none'} wrongly."
    )


def every_clause() -> str:
    """Return how many clauses catch a defect, where each was held against all of them."""
    if not FULL.exists():
        return ""
    found = json.loads(FULL.read_text(encoding="utf-8"))["defects"].values()
    counts = sorted(map(len, found))
    return (
        f" Held against every clause, on the covering cases of `quick`, one of {len(counts)} breaks"
        f" {counts[len(counts) // 2]} of them (the median); {counts.count(1)} break one clause alone."
    )


def everything(found: dict[str, Any]) -> str:
    """Return every defect with what catches it, a section a family."""
    if not found["defects"]:
        return "The kill table has not been made in this checkout: `nox -s defects` makes it.\n"
    parts = [
        "Each is a right implementation with one step replaced. Clauses that name its kind come first.\n"
    ]
    families = dict.fromkeys(d["family"] for d in found["defects"].values())
    for family in families:
        rows = []
        for name, defect in found["defects"].items():
            if defect["family"] != family:
                continue
            caught = [
                (c, k)
                for c, k in defect["kills"].items()
                if k["status"] in ("failed", "question") and c in clauses()
            ]
            names = [c for c, _ in sorted(caught, key=lambda item: not item[1].get("named", False))]
            shown = links.clause_list(names[:4], up="../") + (
                f" and {len(names) - 4} more" if len(names) > 4 else ""
            )
            rows.append(
                (f"`{name}`", prose(defect["what"]), shown or "**none**", links.issues(defect["stands_for"]))
            )
        parts += [
            f"## {family[0].upper()}{family[1:]}\n",
            table(("defect", "what is wrong", "caught by", "stands for"), rows),
        ]
    return "\n".join(parts)


def soak() -> str:
    """Return the soak's figures."""
    if not SOAK.exists():
        return "No soak has been recorded in this checkout: `nox -s soak` runs one.\n"
    data = json.loads(SOAK.read_text(encoding="utf-8"))
    said = (
        f"{number(data['comparisons'])} comparisons on {len(data['implementations'])} right implementations"
        f" in {data['minutes']:.0f} minutes, seeds {data['seeds'][0]} to {data['seeds'][1]},"
        f" torch {data['torch']}:"
        f" **{len(data['violations'])} false alarms**. The largest error, as a share of what is allowed:"
    )
    rows = [
        (
            dtype,
            number(worst["comparisons"]),
            f"{worst['largest']:.0%}",
            links.clause(worst["clause"], up=""),
            code(worst["implementation"]),
        )
        for dtype, worst in data["dtypes"].items()
    ]
    return (
        f"{said}\n\n"
        + table(("dtype", "comparisons", "largest error", "clause", "implementation"), rows)
        + seeds()
    )


def seeds() -> str:
    """Return how often the built-in implementations were checked as a user checks them."""
    if not SEEDS.exists():
        return ""
    data = json.loads(SEEDS.read_text(encoding="utf-8"))
    rows = [row for runs in data["runs"].values() for row in runs.values()]
    each = [len(runs) for runs in data["runs"].values()]
    bad = sum(row["status"] != 0 for row in rows)
    return (
        f"\nBy the command line, {code(data['command'])}: {len(rows)} runs of {len(each)} built-in"
        " implementations,"
        f" {min(each)} to {max(each)} seeds each, {number(sum(row['cases'] for row in rows))} cases:"
        f" **{bad} do not conform**.\n"
    )
