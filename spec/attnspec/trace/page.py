"""Show a trace as one self-contained HTML page."""

from html import escape

from .render import HEADINGS, STATUS, cells, summary, where
from .table import Trace

_STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --ground: #fff; --line: #d5dae2;
  --quiet: #667085; --bad: #b42318; --bad-ground: #fdecea; --good: #18794e; --part: #0b6b8a;
  --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ef; --ground: #14181f; --line: #313a48;
  --quiet: #98a2b3; --bad: #ff8f85; --bad-ground: #3a1a1a; --good: #6bd39b; --part: #6cc7e4;
  --warn: #e6b450; } }
body { margin: 0 auto; max-width: 90rem; padding: 1.5rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; }
td.mono { font-family: ui-monospace, monospace; min-width: 14ch; overflow-wrap: anywhere; }
tr.side td { color: var(--quiet); }
tr.guilty td, tr.departs td { background: var(--bad-ground); }
.departs, .fails { color: var(--bad); } .passed, .right { color: var(--good); } .fused { color: var(--part); }
.missing, .note { color: var(--warn); }
"""


def to_html(trace: Trace) -> str:
    """Return a trace as a page that needs no other file; it follows the reader's light or dark setting."""
    title = escape(trace.title or "Trace")
    sentences = "".join(f'<p class="{kind}">{escape(text)}</p>' for kind, text in summary(trace))
    parts = [f"<h1>{title}</h1>", sentences, "<h2>What the code does</h2>", _code_table(trace)]
    if trace.contract:
        parts += ["<h2>What the contract says</h2>", _contract_table(trace)]
    sizes = "; ".join(", ".join(f"{k}={v}" for k, v in run.items()) for run in trace.sizes)
    parts.append(f'<p class="quiet">Runs: {escape(sizes)}</p>')
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _code_table(trace: Trace) -> str:
    guilty = trace.departure.row if trace.departure is not None else None
    body = []
    for number, row in enumerate(trace.rows):
        kind = "guilty" if number == guilty or row.error else "side" if row.side else ""
        body.append((kind, [(cell, i in (1, 2, 3, 5)) for i, cell in enumerate(cells(row))]))
    return _table(HEADINGS, body)


def _contract_table(trace: Trace) -> str:
    body = [
        (
            c.status,
            [
                (STATUS[c.status][0], False),
                (c.name, False),
                (f"({', '.join(c.gives)})", True),
                (where(trace, c), True),
            ],
        )
        for c in trace.contract
    ]
    return _table(("", "row", "gives", "here"), body)


def _table(headings: tuple[str, ...], body: list[tuple[str, list[tuple[str, bool]]]]) -> str:
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in headings)
    rows = "".join(
        f'<tr class="{kind}">'
        + "".join(
            f'<td class="mono">{_breakable(c)}</td>' if mono else f"<td>{escape(c)}</td>" for c, mono in row
        )
        + "</tr>"
        for kind, row in body
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _breakable(text: str) -> str:
    """Return text for HTML that may go on in a new line after a dot or a factor."""
    return escape(text).replace("*", "*<wbr>").replace(").", ")<wbr>.")
