"""Trace any attention code: its named shape table, held against the contract's, and where it goes wrong.

The pieces: `record` sees the operations, `Solver` names the axes, `reading` and `blame` compare with the
oracle's stages, `render` and `page` show the result. What constructs and calls the user's code is not here.
"""

from .build import trace_runs
from .record import Event, Recording, Run, record
from .solve import Solver, prime_sizes
from .table import ContractRow, Departure, Failure, Row, TensorShape, Trace

__all__ = [
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
    "prime_sizes",
    "record",
    "trace_runs",
]
