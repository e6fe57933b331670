"""The process in which the code under test lives: it takes orders on one pipe and answers on another.

Whatever the code prints, closes, changes globally or does to the process stays here. The parent sees
answers, heartbeats, or the end of the process, and each of them is a result.
"""

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

# Seconds that the suite may be busy between two calls of the code under test.
OWN_WORK = 120.0


class Channel:
    """The two ends that the parent holds, out of reach of prints and of reads from standard input."""

    def __init__(self) -> None:
        self._orders: TextIO = os.fdopen(os.dup(0), "r", encoding="utf-8")
        self._answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._null, self._sink = os.open(os.devnull, os.O_RDONLY), os.dup(2)
        self._restore()
        self._last, self._lock = 0.0, threading.Lock()
        self._process = os.getpid()

    def orders(self) -> Any:
        """Yield one order after another until the parent closes the pipe."""
        for line in self._orders:
            self._restore()
            yield json.loads(line)

    def _restore(self) -> None:
        """Give the code under test an empty input, and outputs that lead nowhere; it may have closed them."""
        for own, descriptor in ((self._null, 0), (self._sink, 1), (self._sink, 2)):
            os.dup2(own, descriptor)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name)
            if stream is None or stream.closed:
                setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8", closefd=False))

    def answer(self, kind: str, **data: Any) -> None:
        """Send one answer."""
        self._end_copy()
        line = json.dumps({"kind": kind, **data}, default=str) + "\n"
        with self._lock:
            self._answers.write(line)
            self._answers.flush()

    def beat(self) -> None:
        """Say that the code under test is about to be called, at most four times a second."""
        self._end_copy()
        now = time.monotonic()
        if now - self._last > 0.25:
            self._last = now
            self.answer("beat")

    def beat_while(self, quiet: Callable[[], bool]) -> None:
        """Beat on while no call of the code is under way: the suite's own work is never taken for a hang."""

        def run() -> None:
            with suppress(OSError, ValueError):
                while True:
                    time.sleep(0.5)
                    if quiet():
                        self.beat()

        threading.Thread(target=run, daemon=True).start()

    def _end_copy(self) -> None:
        """End here if the code under test made this process by a fork and let it come back."""
        if os.getpid() != self._process:
            leave(0)


def limit_memory(gigabytes: float) -> None:
    """Let an allocation fail before the machine does."""
    try:
        import resource
    except ImportError:
        return
    size = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


leave = os._exit


def keep_process() -> None:
    """Turn `os._exit` of the code under test into an exception: one call's result, with its line."""

    own = os.getpid()

    def exit_call(status: int) -> None:
        if os.getpid() != own:
            leave(status)
        raise SystemExit(status)

    os._exit = exit_call  # type: ignore[assignment]


def main() -> None:
    """Serve one parent until it hangs up."""
    faulthandler.enable()
    keep_process()
    channel = Channel()
    from .guard import Heartbeat
    from .local import LocalSession

    Heartbeat.beat, Heartbeat.alone = staticmethod(channel.beat), True
    channel.beat_while(lambda: Heartbeat.is_quiet(OWN_WORK))
    session: LocalSession | None = None
    for order in channel.orders():
        Heartbeat.returned = time.monotonic()
        try:
            if order.get("memory"):
                limit_memory(order["memory"])
            if order["order"] == "find":
                channel.answer("found", **find_kinds(order))
            elif order["order"] == "recognise":
                session = LocalSession.from_order(order)
                channel.answer("recognised", **session.recognise())
            elif order["order"] == "clause":
                assert session is not None
                channel.answer("result", **session.run(order["clause"]).as_dict())
            elif order["order"] == "call":
                assert session is not None
                channel.answer("called", value=session.call(order["what"]))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            channel.answer("error", **explain(error))


def find_kinds(order: dict[str, Any]) -> dict[str, Any]:
    """Return the kinds of attention inside a model, and what was not taken for attention."""
    from ..declaration import Declaration
    from ..loading import load_target
    from ..recognition.inside import find_attention
    from .guard import under_way

    with under_way():
        target = load_target(order["target"])
    kinds, left = find_attention(target, Declaration(new=order["new"]))
    return {"kinds": [{"name": kind.name, "paths": kind.paths} for kind in kinds], "left": left}


def explain(error: BaseException) -> dict[str, Any]:
    """Return an error as data: whether it is the user's to mend, and where it happened."""
    from .._errors import AttnspecError
    from .failures import SubjectError, user_place

    mine = not isinstance(error, AttnspecError | SubjectError)
    place = getattr(error, "place", None) or user_place(error.__traceback__)
    text = str(error)
    if mine:
        import traceback

        text = "".join(traceback.format_exception(error))
    return {
        "type": type(error).__name__,
        "message": text,
        "internal": mine,
        "place": str(place) if place else "",
    }


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Threads or exit handlers of the code under test must not keep the process.
    leave(0)
