"""Naming the mistake: a bank of known wrong references, and what was returned held against it.

`identify` names a mistake only if the code returns its wrong numbers on several inputs, where they
differ from the right ones. `match_exception` does the same for what the code raised.
"""

from .bank import BANK
from .exceptions import match_exception
from .identify import identify
from .observe import explains
from .record import Fingerprint, Match

__all__ = ["BANK", "Fingerprint", "Match", "explains", "identify", "match_exception"]
