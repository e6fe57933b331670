"""One small edit of a right text: what it replaces, and what must be named for it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Wrong:
    """One edit of a right text.

    Attributes:
        expected: Names of the fingerprint that it is, any of them; empty where the bank has none.
        text: Which right text.
        edits: Old and new lines.
        case: The features that must be there for it to fail.
    """

    expected: tuple[str, ...]
    text: str
    edits: tuple[tuple[str, str], ...]
    case: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return (
            f"{self.text}:{self.expected[0] if self.expected else 'unknown'}:{self.edits[0][1].strip()[:40]}"
        )


M, C, MC = {"mask": "random"}, {"causal": True}, {"mask": "random", "causal": True}
W, G = {"window": (2, 1)}, {"heads": 4, "kv_heads": 2}
DEAD = {"mask": "dead"}


def wrong(
    expected: str, text: str, old: str, new: str, case: dict[str, Any] | None = None, *more: tuple[str, str]
) -> Wrong:
    return Wrong(tuple(expected.split()), text, ((old, new), *more), case or {})


FILL = 'att = att.masked_fill(~ok, float("-inf"))'
DEADROW = "w = w.masked_fill(~ok.any(-1, keepdim=True), 0)"
OKMASK = "ok = ok & mask"
SM = "w = att.softmax(dim=-1)"
SCALE = "scale = 1 / math.sqrt(D)"
AV = 'y = torch.einsum("bhts,bhsd->bhtd", w, v)'
LEFT, RIGHT = "(gap >= -window[0])", "(gap <= window[1])"
REPK, REPV = "k = k.repeat_interleave(H // G, dim=1)", "v = v.repeat_interleave(H // G, dim=1)"
TANH = "softcap * torch.tanh(att / softcap)"
Q = "q.view(b, t, self.h, self.d).transpose(1, 2)"
K = "k.view(b, s, self.g, self.d).transpose(1, 2)"
V = "v.view(b, s, self.g, self.d).transpose(1, 2)"
MERGE = "o.transpose(1, 2).reshape(b, t, c)"
KEEPM = "keep = keep & mask"
TRIL = "ok = ok.tril(shift)"
TAIL = "p = torch.exp(s - safe)"
