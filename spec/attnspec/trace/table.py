"""The named shape table of a traced run, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorShape:
    """One tensor of a row, or `times` alike: its symbolic shape, and how it lies in memory."""

    shape: tuple[str, ...]
    dtype: str
    contiguous: bool
    name: str | None = None
    times: str = "1"

    def __str__(self) -> str:
        many = "" if self.times == "1" else f"{self.times} × "
        return f"{many}({', '.join(self.shape)})"


@dataclass(frozen=True, slots=True)
class Row:
    """One operation of the user's code, loops folded.

    Attributes:
        op: The operation.
        file: File of the call.
        line: Its line; `source` is that line, `code` the calling expression alone.
        inputs: Its tensors before the call.
        outputs: Its results.
        memory: `copy`, `view`, `same` or `in place`.
        bytes: New memory, as a formula in the axes; `0` for none.
        times: How often the call ran, as an expression; `1` outside loops.
        stages: The contract's rows whose values its results are; a role after a colon.
        reached: Those of `stages` that no row above had.
        runs: The numbers of the runs that came here; all of them unless the path depends on sizes or data.
        side: Whether it only prepares masks, constants or weights and does not touch what is attended over.
        error: What it raised.
        callers: Lines of the same file that led there, nearest first, where the call is in a helper.
    """

    op: str
    file: str
    line: int
    source: str
    code: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    memory: str
    bytes: str
    times: str = "1"
    stages: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    runs: tuple[int, ...] = ()
    side: bool = False
    error: str | None = None
    callers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContractRow:
    """One row of the contract, and where the code goes through it.

    Attributes:
        stage: The stage function's name, the role after a colon where there are three.
        name: The row in words.
        takes: Shapes it takes, in the names that this trace uses.
        gives: Shape it gives.
        status: `passed` (a tensor of the code is this row's), `fused` (a later row is reached without it),
            `departs` (the code goes wrong here) or `missing` (not found).
        row: Number of the first row of the trace that reaches it, or that fuses it.
    """

    stage: str
    name: str
    takes: tuple[tuple[str, ...], ...]
    gives: tuple[str, ...]
    status: str
    row: int | None


@dataclass(frozen=True, slots=True)
class Departure:
    """Where the code first leaves the contract.

    Attributes:
        stage: The stage function's name.
        name: The contract's row in words.
        row: Number of the row of the trace; None if no line can be named.
        file: The user's file; `line`, `source` and `code` likewise.
        text: One sentence: the line, what it gives, what the contract gives.
        callers: Lines of the same file that led there, nearest first, where the line is in a helper.
    """

    stage: str
    name: str
    row: int | None
    file: str
    line: int
    source: str
    code: str
    text: str
    callers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that ended a run half-way.

    Attributes:
        error: Its class and message.
        file: Where it left the user's code; `line` and `source` likewise.
        row: Number of the row that raised, if an operation did.
        expected: The contract's next row, if there is something to compare with.
        text: One sentence.
    """

    error: str
    file: str
    line: int
    source: str
    row: int | None
    expected: ContractRow | None
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced piece of code: its table, held against the contract's.

    Attributes:
        rows: The table.
        contract: The contract's rows; empty if there was nothing to compare with.
        sizes: The sizes of each run.
        correct: Whether every compared run returned what the contract says; None if none was compared.
        departure: Where it leaves the contract; None if it does not, or if that is not known.
        failure: The exception that ended it, if one did.
        notes: Remarks for the reader: runs that took different paths, loops taken on trust.
        title: What was traced.
    """

    rows: tuple[Row, ...]
    contract: tuple[ContractRow, ...]
    sizes: tuple[dict[str, int], ...]
    correct: bool | None
    departure: Departure | None
    failure: Failure | None
    notes: tuple[str, ...] = ()
    title: str = ""

    @property
    def main(self) -> tuple[Row, ...]:
        """The rows that touch what is attended over."""
        return tuple(r for r in self.rows if not r.side)
