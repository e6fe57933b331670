"""A session in a process of its own: a crash, a hang or an exit of the code under test is its result."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .._errors import AttnspecError, SelfTestError, TargetError, UnknownNameError
from ..declaration import Declaration
from .results import ClauseResult, Failure

CALL_LIMIT = 30.0
START_LIMIT = 180.0
MEMORY = 16.0
DEATHS = 3


class WorkerDied(Exception):
    """The process ended, or had to be ended; `how` says it in words."""

    def __init__(self, how: str, trail: str) -> None:
        super().__init__(how)
        self.how, self.trail = how, trail


class WorkerError(AttnspecError):
    """The process reported an error of attnspec itself."""


class ProcessSession:
    """Runs clauses on one target in a worker process, and starts another when that one dies.

    Args:
        target: Text that names it.
        declaration: What is declared about it.
        profile_name: How hard to try.
        seed: Of all cases.
        device: Where tensors live.
        scripts: Folder for scripts that reproduce failures; None writes none.
        limit: Seconds that one call of the code under test may take.
        memory: Gigabytes that the process may map; None is no limit.
        inside: Where the module stands that is checked, if the target is a model; `new` then makes the model.
        new: See `inside`.
    """

    def __init__(
        self,
        target: str,
        declaration: Declaration,
        *,
        profile_name: str = "default",
        seed: int = 1,
        device: str = "cpu",
        scripts: str | None = None,
        limit: float = CALL_LIMIT,
        memory: float | None = MEMORY,
        inside: str | None = None,
        new: str | None = None,
    ) -> None:
        self._order = {
            "order": "recognise",
            "target": target,
            "declaration": declaration.as_dict(),
            "profile": profile_name,
            "seed": seed,
            "device": device,
            "scripts": scripts,
            "memory": memory if device == "cpu" else None,
            "inside": inside,
            "new": new,
        }
        self._limit, self._deaths = limit, 0
        self._worker: _Worker | None = None
        self.recognised: Mapping[str, Any] | None = None

    def recognise(self) -> Mapping[str, Any]:
        """Start the worker and have the target recognised.

        Raises:
            TargetError: If the target cannot be used, or kills or hangs the process while it is loaded.
        """
        with self._start_survived("it was loaded and tried"):
            self._start()
        assert self.recognised is not None
        return self.recognised

    def find(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return the kinds of attention inside a model, each with name and paths, and what is none, and why.

        Raises:
            TargetError: If there is no model, or making it kills or hangs the process.
        """
        with self._start_survived("the model was loaded and made"):
            self._worker = _Worker()
            self._worker.send({**self._order, "order": "find"})
            answer = self._worker.wait("found", START_LIMIT, between=self._limit)
        return answer["kinds"], answer["left"]

    @contextmanager
    def _start_survived(self, what: str) -> Iterator[None]:
        try:
            yield
        except WorkerDied as death:
            self._worker = None
            raise TargetError(f"{self._order['target']}: while {what}, {death.how}{death.trail}") from None

    def run(self, clause: str) -> ClauseResult:
        """Run one clause; the end of the process is a failure of that clause."""
        if self._deaths >= DEATHS:
            return ClauseResult(clause, "not run", reason=f"the process died {DEATHS} times")
        try:
            if self._worker is None:
                self._start()
            assert self._worker is not None
            self._worker.send({"order": "clause", "clause": clause})
            answer = self._worker.wait("result", self._limit)
        except WorkerDied as death:
            self._deaths += 1
            self._worker = None
            failure = Failure(
                what=f"{death.how}{death.trail}",
                case="the process did not survive to say",
                raised="process ended",
                where=death.trail.strip() or None,
            )
            return ClauseResult(clause, "failed", failure=failure, examples=1)
        except WorkerError as error:
            return ClauseResult(clause, "error", reason=str(error))
        return ClauseResult.from_dict(answer)

    def call(self, what: str) -> Any:
        """Ask the worker for something that only it can tell."""
        if self._worker is None:
            self.recognise()
        assert self._worker is not None
        self._worker.send({"order": "call", "what": what})
        return self._worker.wait("called", START_LIMIT)["value"]

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _start(self) -> None:
        self._worker = _Worker()
        self._worker.send(self._order)
        answer = self._worker.wait(
            "recognised", START_LIMIT if self.recognised is None else self._limit + 60, between=self._limit
        )
        self.recognised = {k: v for k, v in answer.items() if k != "kind"}


class _Worker:
    """One process and the thread that reads its answers."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "PYTHONFAULTHANDLER": "1",
        }
        # Nothing of the suite's own appears in the folder where a user happens to stand.
        # The cases are small: more threads than one would only wait for each other, and burn both cores.
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment.setdefault(
            "HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "attnspec-hypothesis")
        )
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attnspec.conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._answers.put(json.loads(line))
            except ValueError:
                continue
        self._answers.put(None)

    def send(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(order) + "\n").encode())
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise self._death() from None

    def wait(self, kind: str, limit: float, *, between: float | None = None) -> dict[str, Any]:
        """Return the next answer of a kind; a heartbeat restarts the clock, from then on with `between`."""
        while True:
            try:
                answer = self._answers.get(timeout=limit)
            except queue.Empty:
                trail = self._trail_of_hang()
                raise WorkerDied(f"a call did not return within {limit:g} seconds (a hang)", trail) from None
            if answer is None:
                raise self._death()
            if answer["kind"] == kind:
                return {k: v for k, v in answer.items() if k != "kind"} if kind == "result" else answer
            if answer["kind"] == "error":
                raise _as_error(answer)
            if answer["kind"] == "beat" and between is not None:
                limit = between

    def _trail_of_hang(self) -> str:
        """Have the process say where it is, then end it."""
        if hasattr(signal, "SIGABRT"):
            self._process.send_signal(signal.SIGABRT)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        else:
            self._process.kill()
        self._end_group()
        return self._user_line()

    def _death(self) -> WorkerDied:
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._end_group()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return WorkerDied(f"the process was ended by {name}", self._user_line())
        return WorkerDied(f"the process ended with exit status {code}", self._user_line())

    def _user_line(self) -> str:
        """Return the innermost line of the user's code in what the process wrote as it ended."""
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace")
        self._release()
        return innermost_line(text)

    def end(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end_group()
        self._release()

    def _release(self) -> None:
        """Close what was open to a process that has ended."""
        self._reader.join(5)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _end_group(self) -> None:
        """End what the code under test started and left behind: the session of the process is its own."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def innermost_line(text: str) -> str:
    """Return the user's line in the last traceback or dump of the fault handler; or nothing.

    A traceback has the innermost call last; a dump has it first, and one section for each thread.
    """
    from .failures import is_machinery

    found, dump, settled = "", False, False
    for words in map(str.strip, text.splitlines()):
        if words.startswith("Traceback (most recent call last)"):
            found, dump, settled = "", False, False
        elif words.endswith("(most recent call first):"):
            if words.startswith("Current thread"):
                found, settled = "", False
            else:
                settled = True
            dump = True
        elif words.startswith('File "') and ", line " in words and not settled:
            file, _, rest = words[6:].partition('", line ')
            if not is_machinery(file) and Path(file).exists():
                found, settled = f"\n  {Path(file).name}:{rest.split()[0].rstrip(',')}", dump
    return found


def _as_error(answer: Mapping[str, Any]) -> AttnspecError:
    place = (
        f"\n  {answer['place']}"
        if answer.get("place") and str(answer["place"]) not in answer["message"]
        else ""
    )
    text = f"{answer['message']}{place}"
    if answer["internal"]:
        return WorkerError(f"attnspec itself failed; please report this:\n{text}")
    if answer["type"] == "SelfTestError":
        return SelfTestError(text)
    if answer["type"] == "UnknownNameError":
        return UnknownNameError.worded(text)
    return TargetError(text)
