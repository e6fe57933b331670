"""The scale: forgotten, from the wrong size, applied to more than the scores."""

import torch

from .bank import defect
from .reference import Core


def _root(size):
    """Return a step that divides by the root of a size, where no scale is given."""

    def scale_scores(self, scores, query, call):
        factor = size(scores, query) ** -0.5 if call.scale is None else call.scale
        return scores * factor

    return scale_scores


@defect("scale", "B070 mlc-ai/mlc-llm#3426", "scale.default", case="d_k=4", fingerprint="scale_missing")
class Unscaled(Core):
    """Scores are not scaled by default."""

    scale_scores = _root(lambda scores, query: 1)


@defect(
    "scale",
    "B069 tenstorrent/tt-metal#56789",
    "scale.default",
    case="heads=2, d_k=4",
    fingerprint="scale_by_heads",
)
class RootOfTheHeads(Core):
    """Scores are divided by the root of the number of heads."""

    scale_scores = _root(lambda scores, query: query.shape[1])


@defect("scale", "common learner error", "scale.default", case="heads=2", fingerprint="scale_by_d_model")
class RootOfTheModel(Core):
    """Scores are divided by the root of `d_model`."""

    scale_scores = _root(lambda scores, query: query.shape[1] * query.shape[-1])


@defect("scale", "common learner error", "scale.default", case="d_k=4", fingerprint="scale_without_root")
class DividedByTheWidth(Core):
    """The root is forgotten."""

    scale_scores = _root(lambda scores, query: query.shape[-1] ** 2)


@defect("scale", "common learner error", "scale.default", case="q_len=4")
class RootOfTheLength(Core):
    """Scores are divided by the root of the number of queries."""

    scale_scores = _root(lambda scores, query: query.shape[2])


@defect("scale", "common learner error", "scale.default", case="kv_len != d_k")
class RootOfTheKeys(Core):
    """`key.size(-1)` was taken after the transpose: the number of keys."""

    scale_scores = _root(lambda scores, query: max(scores.shape[-1], 1))


@defect("scale", "common learner error", "scale.default", case="d_k=4", fingerprint="scale_twice")
class ScaledTwice(Core):
    """The query is scaled, and the scores again."""

    def scale_scores(self, scores, query, call):
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        return scores * factor * factor


@defect("scale", "common learner error", "scale.default", case="d_k != 64", fingerprint="scale_of_64")
class ScaleOfSixtyFour(Core):
    """The scale is 1/8, right for heads of width 64."""

    scale_scores = _root(lambda scores, query: 64)


@defect("scale", "common learner error", "scale.default", case="d_v != d_k", place="scale_scores")
class RootOfTheValueWidth(Core):
    """The width under the root is that of the values."""

    def attend(self, query, key, value, call):
        call.scale = value.shape[-1] ** -0.5 if call.scale is None else call.scale
        return super().attend(query, key, value, call)


@defect("scale", "common learner error", "scale.default", case="d_k=5", place="scale_scores")
class WidthRoundedToEven(Core):
    """The width under the root is rounded down to an even number."""

    scale_scores = _root(lambda scores, query: max(query.shape[-1] // 2 * 2, 1))


@defect("scale", "B073 SKaiNET-developers/SKaiNET#880", "scale.zero", case="scale=0")
class ScaleOrDefault(Core):
    """`scale or default`: 0 is taken for nothing."""

    def scale_scores(self, scores, query, call):
        return scores * (call.scale or query.shape[-1] ** -0.5)


@defect(
    "scale",
    "B074 huggingface/transformers#43481",
    "scale.explicit",
    "scale.moves_to_query",
    case="scale=2",
    fingerprint="scale_ignored",
)
class ScaleIgnored(Core):
    """An explicit scale is not looked at."""

    def scale_scores(self, scores, query, call):
        return scores * query.shape[-1] ** -0.5


@defect("scale", "common learner error", "scale.negative", case="scale=-1")
class ScaleMadePositive(Core):
    """A negative scale loses its sign."""

    def scale_scores(self, scores, query, call):
        return scores * abs(query.shape[-1] ** -0.5 if call.scale is None else call.scale)


@defect("scale", "common learner error", "scale.explicit", case="scale=2, d_k=4")
class ScaleOnTopOfTheDefault(Core):
    """An explicit scale is multiplied onto the default one."""

    def scale_scores(self, scores, query, call):
        return scores * query.shape[-1] ** -0.5 * (1.0 if call.scale is None else call.scale)


@defect("scale", "common learner error", "scale.explicit", "scale.moves_to_query", case="scale=2")
class ScaleDivides(Core):
    """The scores are divided by an explicit scale."""

    def scale_scores(self, scores, query, call):
        if call.scale in (None, 0.0):
            return super().scale_scores(scores, query, call)
        return scores / call.scale


@defect("scale", "common learner error", "scale.explicit", case="scale=0.3")
class ScaleCappedAtOne(Core):
    """A scale above 1 is cut to 1."""

    def scale_scores(self, scores, query, call):
        return scores * min(query.shape[-1] ** -0.5 if call.scale is None else call.scale, 1.0)


@defect("scale", "common learner error", "scale.options", "causal.value", case="causal")
class CausalPathIsUnscaled(Core):
    """The causal path does not pass the default scale on."""

    def scale_scores(self, scores, query, call):
        missing = call.causal and call.scale is None
        return scores if missing else super().scale_scores(scores, query, call)


@defect("scale", "common learner error", "scale.options", "mask.all_true", case="a mask of ones")
class MaskedPathIsUnscaled(Core):
    """The masked path does not pass the default scale on."""

    def scale_scores(self, scores, query, call):
        missing = call.mask is not None and call.scale is None
        return scores if missing else super().scale_scores(scores, query, call)


@defect(
    "scale",
    "B075 tenstorrent/tt-metal#42891",
    "bias.unscaled",
    "scale.options",
    place="add_bias",
    case="a bias, scale 1/2",
    fingerprint="bias_scaled",
)
class BiasIsScaled(Core):
    """The scale is folded into the exponent: the bias is scaled too."""

    def add_bias(self, scores, call):
        factor = call.notes["factor"]
        return scores + call.bias * factor

    def scale_scores(self, scores, query, call):
        call.notes["factor"] = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        return super().scale_scores(scores, query, call)


@defect("scale", "common learner error", "value.constant", "value.plain", place="scale_scores", case="d_k=4")
class WeightsAreScaled(Core):
    """The scale is applied after the softmax."""

    def scale_scores(self, scores, query, call):
        call.notes["factor"] = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        return scores

    def drop_weights(self, weights, call):
        return super().drop_weights(weights, call) * call.notes["factor"]


@defect("scale", "common learner error", "scale.explicit", "scale.default", case="scale=0.3, float32")
class ScaleHeldInHalfPrecision(Core):
    """The scale is a bfloat16 number."""

    def scale_scores(self, scores, query, call):
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        return scores * float(torch.tensor(factor, dtype=torch.bfloat16))
