"""Trace any attention code: its named shape table, held against the contract's, and where it goes wrong.

The pieces: `record` sees the operations, `Solver` names the axes, `reading` and `blame` compare with the
oracle's stages, `render` and `page` show the result. What constructs and calls the user's code is not here.
"""

from .build import trace_runs
from .compare import Comparison, compare
from .page import to_html
from .record import Event, Recording, Run, record
from .render import render_table, to_json, to_markdown
from .solve import Solver, prime_sizes
from .table import ContractRow, Departure, Failure, Row, TensorShape, Trace

__all__ = [
    "Comparison",
    "ContractRow",
    "Departure",
    "Event",
    "Failure",
    "Recording",
    "Row",
    "Run",
    "Solver",
    "TensorShape",
    "Trace",
    "compare",
    "prime_sizes",
    "record",
    "render_table",
    "to_html",
    "to_json",
    "to_markdown",
    "trace_runs",
]
