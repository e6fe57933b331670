"""Bias, window and softcap: in another order, off by one, or lost beside another option."""

import torch

from .bank import defect
from .reference import INF, Core


@defect(
    "window/softcap/bias", "common learner error", "bias.value", case="a bias", fingerprint="bias_ignored"
)
class BiasIgnored(Core):
    """The bias is not used."""

    def add_bias(self, scores, call):
        return scores


@defect("window/softcap/bias", "common learner error", "bias.value", case="a bias")
class BiasSubtracted(Core):
    """The bias is subtracted."""

    def add_bias(self, scores, call):
        return scores - call.bias


@defect(
    "window/softcap/bias",
    "common learner error",
    "bias.value",
    case="a bias",
    place="add_bias",
)
class BiasAfterTheSoftmax(Core):
    """The bias is added to the weights."""

    def add_bias(self, scores, call):
        return scores

    def normalise(self, scores, seen, call):
        weights = super().normalise(scores, seen, call)
        return weights if call.bias is None else weights + call.bias * seen


@defect("window/softcap/bias", "common learner error", "bias.value", case="a bias")
class BiasMultiplied(Core):
    """Scores are multiplied by one plus the bias."""

    def add_bias(self, scores, call):
        return scores * (1 + call.bias)


@defect("window/softcap/bias", "common learner error", "bias.value", case="heads=2, a bias of heads")
class BiasOfTheFirstHead(Core):
    """The first head's bias serves all."""

    def add_bias(self, scores, call):
        return scores + call.bias[:, :1]


@defect("window/softcap/bias", "common learner error", "bias.value", case="batch=2, a bias of samples")
class BiasOfTheFirstSample(Core):
    """The first sample's bias serves all."""

    def add_bias(self, scores, call):
        return scores + call.bias[:1]


@defect("window/softcap/bias", "common learner error", "bias.value", case="q_len = kv_len, a bias")
class BiasTransposed(Core):
    """A square bias is transposed."""

    def add_bias(self, scores, call):
        square = call.bias.shape[-1] == call.bias.shape[-2]
        return scores + (call.bias.mT if square else call.bias)


@defect(
    "window/softcap/bias",
    "common learner error",
    "bias.with_mask",
    case="a bias and a mask",
    place="add_bias",
)
class BiasLostBesideAMask(Core):
    """With a mask the bias is not added."""

    def add_bias(self, scores, call):
        return scores if call.mask is not None else scores + call.bias


@defect(
    "window/softcap/bias",
    "common learner error",
    "bias.with_mask",
    case="a bias and a mask",
    place="mask_scores",
)
class MaskLostBesideABias(Core):
    """With a bias the mask is not applied."""

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask) if call.bias is not None else mask


@defect(
    "window/softcap/bias",
    "common learner error",
    "bias.with_mask",
    case="a bias and a mask",
    place="mask_scores",
)
class BiasAddedToTheFill(Core):
    """The bias comes after a fill of -100, and can lift a hidden key."""

    def add_bias(self, scores, call):
        return scores

    def mask_scores(self, scores, seen, call):
        if call.bias is None or call.mask is None:
            scores = scores if call.bias is None else scores + call.bias
            return super().mask_scores(scores, seen, call)
        return scores.masked_fill(~seen, -6.0) + call.bias


@defect("window/softcap/bias", "B101 pytorch/pytorch#188302", "bias.gradient", case="a bias, backward")
class BiasDetached(Core):
    """The bias gets no gradient."""

    def add_bias(self, scores, call):
        return scores + call.bias.detach()


@defect(
    "window/softcap/bias",
    "B021 pytorch/pytorch#109517",
    "bias.infinite",
    case="a bias of -inf",
    place="normalise",
)
class InfiniteBiasGivesNaN(Core):
    """A row whose bias is -inf goes through a plain softmax."""

    def normalise(self, scores, seen, call):
        dead = ~seen.any(-1, keepdim=True)
        return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


@defect(
    "window/softcap/bias",
    "B193 huggingface/transformers#39408",
    "window.count",
    "window.value",
    case="window 2, length 3",
    fingerprint="window_one_too_many",
)
class WindowOneTooMany(Core):
    """The left extent is one too large."""

    def visible_positions(self, q_len, kv_len, call):
        if call.window is not None and call.window[0] >= 0:
            call.window = (call.window[0] + 1, call.window[1])
        return super().visible_positions(q_len, kv_len, call)


@defect(
    "window/softcap/bias",
    "B194 huggingface/transformers#26792",
    "window.count",
    "window.value",
    case="window 2, length 4",
    fingerprint="window_one_too_few",
)
class WindowOneTooFew(Core):
    """The left extent is read as a count of keys, the query's own among them."""

    def visible_positions(self, q_len, kv_len, call):
        if call.window is not None and call.window[0] > 0:
            call.window = (call.window[0] - 1, call.window[1])
        return super().visible_positions(q_len, kv_len, call)


@defect("window/softcap/bias", "common learner error", "window.value", "window.outside", case="length 4")
class WindowIgnored(Core):
    """The window is not used."""

    def visible_positions(self, q_len, kv_len, call):
        call.window = None
        return super().visible_positions(q_len, kv_len, call)


@defect("window/softcap/bias", "common learner error", "window.value", "window.outside", case="window (1, 2)")
class WindowSidesSwapped(Core):
    """Left and right change places."""

    def visible_positions(self, q_len, kv_len, call):
        call.window = call.window and call.window[::-1]
        return super().visible_positions(q_len, kv_len, call)


@defect("window/softcap/bias", "common learner error", "window.value", case="window (0, 0)")
class WindowOfZeroIsNone(Core):
    """A distance of 0 is taken for unbounded."""

    def visible_positions(self, q_len, kv_len, call):
        call.window = call.window and tuple(side or -1 for side in call.window)
        return super().visible_positions(q_len, kv_len, call)


@defect("window/softcap/bias", "common learner error", "window.value", case="window (-1, 1)")
class UnboundedWindowIsLiteral(Core):
    """-1 is taken for a distance on the left."""

    def visible_positions(self, q_len, kv_len, call):
        seen = super().visible_positions(q_len, kv_len, call)
        if call.window is None or call.window[0] != -1:
            return seen
        distance = torch.arange(kv_len) - torch.arange(q_len)[:, None] - (kv_len - q_len)
        return seen & (distance >= 0)


@defect("window/softcap/bias", "B122 trymirai/lalamo#200", "window.value", case="q_len=2, kv_len=4, window 1")
class WindowByChunkRows(Core):
    """The window counts from the row in the chunk, not from the position."""

    def visible_positions(self, q_len, kv_len, call):
        if call.window is None:
            return super().visible_positions(q_len, kv_len, call)
        left, right = call.window
        distance = torch.arange(kv_len) - torch.arange(q_len)[:, None]
        seen = torch.ones(q_len, kv_len, dtype=torch.bool)
        seen = seen & (distance >= -left) if left >= 0 else seen
        seen = seen & (distance <= right) if right >= 0 else seen
        return seen & (distance <= kv_len - q_len) if call.causal else seen


@defect("window/softcap/bias", "common learner error", "window.with_causal", case="window and causal")
class WindowTurnsCausalOff(Core):
    """With a window the causal flag is ignored."""

    def visible_positions(self, q_len, kv_len, call):
        if call.window is not None:
            call.causal = False
        return super().visible_positions(q_len, kv_len, call)


@defect("window/softcap/bias", "common learner error", "window.with_causal", case="window and causal")
class CausalTurnsTheWindowOff(Core):
    """With the causal flag the window is ignored."""

    def visible_positions(self, q_len, kv_len, call):
        if call.causal:
            call.window = None
        return super().visible_positions(q_len, kv_len, call)


@defect("window/softcap/bias", "common learner error", "window.with_mask", case="window and a mask")
class MaskTurnsTheWindowOff(Core):
    """With a mask the window is ignored."""

    def visible_positions(self, q_len, kv_len, call):
        if call.mask is not None:
            call.window = None
        return super().visible_positions(q_len, kv_len, call)


@defect(
    "window/softcap/bias",
    "B192 unslothai/unsloth-zoo#593",
    "softcap.value",
    case="score 10, cap 1",
    fingerprint="softcap_x_tanh",
)
class SoftcapOfTheScore(Core):
    """`x * tanh(x / c)` instead of `c * tanh(x / c)`."""

    def cap_scores(self, scores, call):
        return scores * torch.tanh(scores / call.softcap)


@defect("window/softcap/bias", "common learner error", "softcap.value", case="cap 2")
class SoftcapNotMultiplied(Core):
    """`tanh(x / c)`: the cap is not multiplied back."""

    def cap_scores(self, scores, call):
        return torch.tanh(scores / call.softcap)


@defect("window/softcap/bias", "common learner error", "softcap.value", case="score 10, cap 1")
class SoftcapIsAClamp(Core):
    """Scores are cut off at the cap."""

    def cap_scores(self, scores, call):
        return scores.clamp(-call.softcap, call.softcap)


@defect("window/softcap/bias", "common learner error", "softcap.value", case="score 10, cap 1")
class SoftcapIgnored(Core):
    """The cap is not used."""

    def cap_scores(self, scores, call):
        return scores


@defect(
    "window/softcap/bias",
    "common learner error",
    "softcap.value",
    case="scale 1/2, cap 1",
    place="cap_scores",
)
class SoftcapBeforeTheScale(Core):
    """Unscaled scores are capped."""

    def scale_scores(self, scores, query, call):
        if call.softcap is not None:
            scores = super().cap_scores(scores, call)
        return super().scale_scores(scores, query, call)

    def cap_scores(self, scores, call):
        return scores


@defect(
    "window/softcap/bias",
    "common learner error",
    "softcap.before_mask",
    case="a mask, cap 2",
    place="cap_scores",
    fingerprint="softcap_after_mask",
)
class SoftcapAfterTheMask(Core):
    """Hidden scores of -inf become -c."""

    def cap_scores(self, scores, call):
        return scores

    def mask_scores(self, scores, seen, call):
        scores = super().mask_scores(scores, seen, call)
        return scores if call.softcap is None else super().cap_scores(scores, call)


@defect(
    "window/softcap/bias",
    "common learner error",
    "softcap.before_bias",
    case="a bias, cap 2",
    place="cap_scores",
)
class SoftcapAfterTheBias(Core):
    """The bias is capped too."""

    def cap_scores(self, scores, call):
        return scores if call.bias is not None else super().cap_scores(scores, call)

    def add_bias(self, scores, call):
        scores = super().add_bias(scores, call)
        return scores if call.softcap is None else super().cap_scores(scores, call)


@defect(
    "window/softcap/bias",
    "common learner error",
    "softcap.before_mask",
    case="causal, cap 2",
    place="cap_scores",
)
class SoftcapLostWhenCausal(Core):
    """With the causal flag scores are not capped."""

    def cap_scores(self, scores, call):
        return scores if call.causal else super().cap_scores(scores, call)


@defect(
    "window/softcap/bias", "common learner error", "bias.unscaled", case="a bias, scale=0", place="add_bias"
)
class BiasLostAtScaleZero(Core):
    """The bias is divided by the scale and scaled back: at scale 0 it is gone."""

    def scale_scores(self, scores, query, call):
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        if call.bias is not None and factor == 0:
            call.bias = torch.zeros_like(call.bias)
        return scores * factor


@defect("window/softcap/bias", "common learner error", "bias.value", case="a bias of keys", place="add_bias")
class ZeroBiasIsAMask(Core):
    """Where the bias is below -1, the key is hidden."""

    def add_bias(self, scores, call):
        return (scores + call.bias).masked_fill(call.bias < -1.0, -INF)
