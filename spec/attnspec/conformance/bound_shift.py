r"""What a shift of a whole row of scores, differentiated through, adds to the gradients.

Adding $g_i$ to every score of a row changes nothing, and its gradient is $\sum_j dS_{ij}$, exactly 0. In
floating point the terms $P_j (dP_j - r)$ add up to a $\rho_i$ instead: the errors of $P$ and of $dP$
cancel, for both products hold the same numbers, and what is left is

$$\rho = \gamma_{T+2}(u_a) \sum_j \hat P_j |dP_j| + |r|\,\bigl|1 - \sum_j \tilde P_j\bigr|
         + (\gamma_{T+4}(u_a) + u_s) \sum_j |dS_j|$$

with the first sum over features, $|G| \cdot (\hat P |V|)$, where that is larger: kernels take $r$ from the
output.

This $\rho$ flows on into whatever $g$ was made of. Covered are the shifts that code has: a row's maximum,
whose gradient goes to one key, and a mean over the keys that the row sees, scaled or not, which goes to
each of them in equal parts; for the query also any other key's score, and a mean or a sum of the query's
own entries. A key that is chosen otherwise, the first one say, would have to be allowed for at every key at
once, which makes the bound of the keys' gradient thirteen times as wide as without any shift (median at 9
to 128 keys in float32; twice with what is covered). The worst case is left out there; what such code really
does stays inside.
"""

import torch
from torch import Tensor

from attnspec.precision import Roundoffs

from .bound import Spread
from .inexact import Off, accumulator_tiny, gamma, score_tiny


def row_sum(
    around: Spread, mixed: Off, mean: Tensor, logits: Off, upstream: Off, value: Off, roundoffs: Roundoffs
) -> Tensor:
    r"""Return $\rho$, how far the gradients of a row of logits may be from adding up to 0.

    Args:
        around: Where the weights may lie, as the forward pass left them.
        mixed: $dP$.
        mean: The largest $|r|$ that a right implementation may hold.
        logits: $dS$, stored.
        upstream: $G$.
        value: $V$.
        roundoffs: Where the implementation rounds.
    """
    unit, length, width = roundoffs.accumulation, around.weights.shape[-1], value.exact.shape[-1]
    weights = around.highest + around.rounding
    over_keys = (weights * mixed.size).sum(-1, keepdim=True)
    over_features = (upstream.size * (weights @ value.size)).sum(-1, keepdim=True)
    summed = torch.maximum(
        gamma(length + 2, unit) * over_keys, gamma(length + width + 4, unit) * over_features
    )
    lost = roundoffs.scores * score_tiny(roundoffs) + 4 * accumulator_tiny(roundoffs)
    behind = (gamma(length + 4, unit) + roundoffs.scores) * logits.size + lost * (around.budget > 0)
    return summed + mean * around.rounding.sum(-1, keepdim=True) + behind.sum(-1, keepdim=True)


def _shares(around: Spread, steepest: float, scale: float) -> Tensor:
    """Return how much of a row's shift may come from each key: equal parts, or all of it from the maximum."""
    seen = around.budget > 0
    even = seen.double() / seen.sum(-1, keepdim=True).clamp(min=1) * steepest
    surely = (around.weights - around.drift).amax(-1, keepdim=True)
    top = seen & (around.highest >= surely)
    return torch.where(top, even.clamp(min=abs(scale)), even)


def with_shift(
    found: dict[str, Off], summed: Tensor, key: Off, query: Off, around: Spread, scale: float
) -> dict[str, Off]:
    """Allow the gradients of query and key for a shift of each row, given its `row_sum`."""
    steepest, seen = max(1.0, abs(scale)), around.budget > 0
    even = seen.double() / seen.sum(-1, keepdim=True).clamp(min=1)
    mean = (even @ key.exact).abs() + even @ key.error
    longest = torch.where(seen.any(-2)[..., None], key.size, 0.0).amax(-2, keepdim=True)
    added = {
        "query": summed * torch.maximum(steepest * mean, abs(scale) * longest).clamp(min=1.0),
        "key": _shares(around, steepest, scale).mT @ (summed * query.size),
    }
    return {name: Off(off.exact, off.error + added[name]) for name, off in found.items()}


def shift_of_logits(summed: Tensor, around: Spread) -> Tensor:
    """Return the part of a row's shift that may come back to each logit, and so to the bias."""
    return summed * _shares(around, 1.0, 1.0)
