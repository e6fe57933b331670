"""Known mistakes with the scale, the softcap and the bias.

Long because it is a table: an entry is data, one mistake each.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .._inputs import CoreInputs
from .builder import Step, attend, cap
from .record import Fingerprint, WrongCore


def _default(factor: Callable[[CoreInputs], float]) -> WrongCore:
    """Attend with another default scale."""
    return lambda x: attend(x.replace(scale=factor(x))) if x.scale is None else None


def _always(factor: Callable[[CoreInputs], float]) -> WrongCore:
    """Attend with another scale, whether one is given or not."""
    return lambda x: attend(x.replace(scale=factor(x)))


def _explicit(factor: Callable[[float, float], float | None]) -> WrongCore:
    """Attend with another scale where one is given; `factor` takes it and the default."""

    def core(x: CoreInputs) -> Tensor | None:
        changed = None if x.scale is None else factor(float(x.scale), x.query.shape[-1] ** -0.5)
        return None if changed is None else attend(x.replace(scale=changed))

    return core


def _capped(logits: Step) -> WrongCore:
    """Attend with other logits where there is a softcap."""
    return lambda x: None if x.softcap is None else attend(x, logits=logits)


def _biased(logits: Step) -> WrongCore:
    """Attend with other logits where there is a bias."""
    return lambda x: None if x.bias is None else attend(x, logits=logits)


def _plus(x: CoreInputs, scores: Tensor) -> Tensor:
    return scores if x.bias is None else scores + x.bias


def _cap_masked(x: CoreInputs) -> Tensor | None:
    """Cap what is masked already: a forbidden key gets `-softcap`, a finite number."""
    if x.softcap is None or (x.mask is None and x.extent == (-1, -1)):
        return None
    from .builder import forbid

    def plain(x: CoreInputs, raw: Tensor) -> Tensor:
        return _plus(x, raw * x.factor)

    return attend(x, logits=plain, block=lambda x, s: cap(x, forbid(x, s)))


def _width(x: CoreInputs) -> float:
    return float(x.query.shape[1] * x.query.shape[-1])


_SCALE = "scale = d_k ** -0.5"
_CAP = "softcap * torch.tanh(scores / softcap)"

SCORES = (
    Fingerprint(
        "scale.missing", "the scores are not scaled", f"multiply them: {_SCALE}", "", _always(lambda x: 1.0)
    ),
    Fingerprint(
        "scale.default_missing",
        "the scores are not scaled unless a scale is given",
        f"fill in the default: {_SCALE}",
        "",
        _default(lambda x: 1.0),
        special_of="scale.missing",
    ),
    Fingerprint(
        "scale.d_model",
        "the scores are divided by sqrt(d_model), not by sqrt(d_k)",
        _SCALE,
        "",
        _default(lambda x: _width(x) ** -0.5),
    ),
    Fingerprint(
        "scale.heads",
        "the scores are divided by sqrt(heads), not by sqrt(d_k)",
        _SCALE,
        "",
        _default(lambda x: x.query.shape[1] ** -0.5),
    ),
    Fingerprint(
        "scale.d_k",
        "the scores are divided by d_k: its square root is missing, or the scale is applied twice",
        _SCALE,
        "",
        _default(lambda x: 1.0 / x.query.shape[-1]),
    ),
    Fingerprint(
        "scale.twice",
        "the scale is applied twice",
        "scale the queries or the scores, not both",
        "",
        _always(lambda x: x.factor**2),
        special_of="scale.d_k",
    ),
    Fingerprint(
        "scale.multiplied",
        "the scores are multiplied by sqrt(d_k) instead of divided",
        _SCALE,
        "",
        _default(lambda x: x.query.shape[-1] ** 0.5),
    ),
    Fingerprint(
        "scale.d_v",
        "the scale comes from the width of the values",
        f"{_SCALE}, d_k = query.shape[-1]",
        "value_width",
        _default(lambda x: x.value.shape[-1] ** -0.5),
    ),
    Fingerprint(
        "scale.kv_len",
        "the scale comes from the number of keys",
        f"{_SCALE}, d_k = query.shape[-1]",
        "",
        _default(lambda x: x.key.shape[2] ** -0.5),
    ),
    Fingerprint(
        "scale.q_len",
        "the scale comes from the number of queries",
        f"{_SCALE}, d_k = query.shape[-1]",
        "",
        _default(lambda x: x.query.shape[2] ** -0.5),
    ),
    Fingerprint(
        "scale.kv_width",
        "the scale comes from the width of all key heads",
        f"{_SCALE}, d_k = query.shape[-1]",
        "grouped",
        _default(lambda x: (x.key.shape[1] * x.key.shape[-1]) ** -0.5),
        special_of="scale.d_model",
    ),
    Fingerprint(
        "scale.fixed_64",
        "the scale is fixed at 1/8, as if d_k were 64",
        _SCALE,
        "",
        _default(lambda x: 0.125),
    ),
    Fingerprint(
        "scale.batch",
        "the scale comes from the batch size",
        _SCALE,
        "",
        _default(lambda x: x.query.shape[0] ** -0.5),
    ),
    Fingerprint(
        "scale.after_softmax",
        "the weights are scaled after the softmax, the scores are not",
        "scale the scores before softmax",
        "",
        lambda x: attend(x.replace(scale=1.0), mix=lambda y, w, v: x.factor * (w @ v)),
    ),
    Fingerprint(
        "scale.explicit_ignored",
        "the given scale is ignored",
        "use it: scale = d_k ** -0.5 if scale is None else scale",
        "scale",
        _explicit(lambda given, default: default),
    ),
    Fingerprint(
        "scale.zero_as_default",
        "a scale of 0 is taken for no scale: `scale or default`",
        "scale = d_k ** -0.5 if scale is None else scale",
        "scale",
        _explicit(lambda given, default: default if given == 0 else None),
        special_of="scale.explicit_ignored",
    ),
    Fingerprint(
        "scale.positive_only",
        "a scale that is not positive is taken for no scale",
        "scale = d_k ** -0.5 if scale is None else scale",
        "scale",
        _explicit(lambda given, default: default if given <= 0 else None),
        special_of="scale.explicit_ignored",
    ),
    Fingerprint(
        "scale.absolute",
        "the sign of the given scale is lost",
        "multiply by the scale as it is",
        "scale",
        _explicit(lambda given, default: abs(given) if given < 0 else None),
    ),
    Fingerprint(
        "scale.on_top",
        "the given scale comes on top of the default",
        "scale = d_k ** -0.5 if scale is None else scale",
        "scale",
        _explicit(lambda given, default: given * default),
    ),
    Fingerprint(
        "scale.divided",
        "the scores are divided by the given scale",
        "multiply by the scale",
        "scale",
        _explicit(lambda given, default: 1 / given if given else None),
    ),
    Fingerprint(
        "scale.bias_too",
        "the scale is applied to the bias too",
        "add the bias after scaling: scores * scale + bias",
        "bias",
        _biased(lambda x, raw: (cap(x, raw * x.factor) if x.softcap else raw * x.factor) + x.factor * x.bias),
    ),
    Fingerprint(
        "bias.ignored",
        "the bias is ignored",
        "add it: scores = scores + bias",
        "bias",
        lambda x: None if x.bias is None else attend(x.replace(bias=None)),
    ),
    Fingerprint(
        "bias.ignored_with_mask",
        "the bias is ignored as soon as a mask is given",
        "add the bias, then mask",
        "bias mask",
        lambda x: None if x.bias is None or x.mask is None else attend(x.replace(bias=None)),
        special_of="bias.ignored",
    ),
    Fingerprint(
        "bias.subtracted",
        "the bias is subtracted",
        "scores + bias",
        "bias",
        lambda x: None if x.bias is None else attend(x.replace(bias=-x.bias)),
    ),
    Fingerprint(
        "bias.multiplied",
        "the scores are multiplied by the bias",
        "scores + bias",
        "bias",
        _biased(lambda x, raw: cap(x, raw * x.factor) * x.bias),
    ),
    Fingerprint(
        "bias.twice",
        "the bias is added twice",
        "add it once",
        "bias",
        lambda x: None if x.bias is None else attend(x.replace(bias=2 * x.bias)),
    ),
    Fingerprint(
        "bias.capped",
        "the bias is added before the softcap",
        f"cap first: {_CAP} + bias",
        "bias softcap",
        lambda x: (
            None
            if x.bias is None or x.softcap is None
            else attend(x, logits=lambda x, raw: cap(x, raw * x.factor + x.bias))
        ),
    ),
    Fingerprint(
        "bias.after_softmax",
        "the bias is added to the weights after the softmax",
        "add it to the scores",
        "bias",
        lambda x: (
            None if x.bias is None else attend(x.replace(bias=None), mix=lambda y, w, v: (w + x.bias) @ v)
        ),
    ),
    Fingerprint(
        "bias.first_head",
        "every head uses the bias of the first one",
        "keep the heads axis of the bias",
        "bias",
        lambda x: None if x.bias is None or x.bias.shape[1] == 1 else attend(x.replace(bias=x.bias[:, :1])),
    ),
    Fingerprint(
        "bias.first_sample",
        "every sample uses the bias of the first one",
        "keep the batch axis of the bias",
        "bias",
        lambda x: None if x.bias is None or x.bias.shape[0] == 1 else attend(x.replace(bias=x.bias[:1])),
    ),
    Fingerprint(
        "softcap.missing",
        "the softcap is ignored",
        f"cap the scaled scores: {_CAP}",
        "softcap",
        lambda x: None if x.softcap is None else attend(x.replace(softcap=None)),
    ),
    Fingerprint(
        "softcap.after_mask",
        "the softcap comes after the mask: a forbidden key gets -softcap, a finite score",
        "cap first, then mask",
        "softcap mask",
        _cap_masked,
    ),
    Fingerprint(
        "softcap.formula",
        "the softcap is x * tanh(x / c): it caps nothing and loses the sign",
        _CAP,
        "softcap",
        _capped(lambda x, raw: _plus(x, raw * x.factor * torch.tanh(raw * x.factor / x.softcap))),
    ),
    Fingerprint(
        "softcap.unscaled",
        "the softcap is tanh(x / c): the factor c is missing",
        _CAP,
        "softcap",
        _capped(lambda x, raw: _plus(x, torch.tanh(raw * x.factor / x.softcap))),
    ),
    Fingerprint(
        "softcap.undivided",
        "the softcap is c * tanh(x): the division by c is missing",
        _CAP,
        "softcap",
        _capped(lambda x, raw: _plus(x, x.softcap * torch.tanh(raw * x.factor))),
    ),
    Fingerprint(
        "softcap.before_scale",
        "the softcap comes before the scale",
        "scale first, then cap",
        "softcap",
        _capped(lambda x, raw: _plus(x, cap(x, raw) * x.factor)),
    ),
    Fingerprint(
        "softcap.clamped",
        "the scores are clamped, not bent",
        _CAP,
        "softcap",
        _capped(lambda x, raw: _plus(x, (raw * x.factor).clamp(-x.softcap, x.softcap))),
    ),
)
