"""How long a check may go on: in time that this process computes, so that a busy machine tries no less."""

import time

# Code that waits, for a device or asleep, computes nothing; by the clock it has so many times as long.
PATIENCE = 4


class Deadline:
    """A limit that begins to count when it is made."""

    def __init__(self, seconds: float) -> None:
        """Begin to count.

        Args:
            seconds: Of computing; by the clock four times as many.
        """
        self._seconds = seconds
        self._computed, self._clock = time.process_time(), time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        computed, gone = time.process_time() - self._computed, time.perf_counter() - self._clock
        return computed > self._seconds or gone > PATIENCE * self._seconds
