"""What blame says: the row, the event and the reason; and the words that all reasons share."""

from dataclasses import dataclass

from .match import Match
from .reading import Sight, is_rearranged

WORDS = {"q": "queries", "k": "keys", "v": "values"}
OFFSET = "it differs from the contract's by one vector at every position: a bias is missing or is another"
OTHER_HEAD = "in the contract query head h reads key/value head h // group; here it reads another"
_EXPONENTIALS = "softmax softmax_ exp exp_ exp2 exp2_ log_softmax softmin logsumexp sigmoid"
_COPIES = "repeat repeat_interleave expand expand_as tile cat stack"
_BENDS = "tanh clamp clip clamp_min clamp_max hardtanh sigmoid softsign"
EXPONENTIALS, COPIES, BENDS = (frozenset(names.split()) for names in (_EXPONENTIALS, _COPIES, _BENDS))
SOFTMAX_OPS = EXPONENTIALS | {"amax", "max", "sum", "relu"}
PAIRS = ("scores", "cap", "bias")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where code departs: the contract's row by its stage's name, the event, and the reason.

    `role` is `q`, `k` or `v` where the contract has the row three times and one of them is meant.
    """

    stage: str
    event: int | None
    why: str
    role: str | None = None


def role_of(match: Match) -> str:
    """Return a landmark's name without what follows it."""
    return match.landmark.split(" ")[0]


def contents(suspect: Sight, what: str) -> str:
    """Say that a result has other contents than the contract's row, and whether in the same shape."""
    return f"{what} gives {'the same shape with ' if is_rearranged(suspect) else ''}other contents"
