"""Layers around a right core that hand an option on wrongly."""

import torch

from .bank import defect
from .reference import Layer


@defect(
    "mask",
    "B030 lucidrains/halonet-pytorch#4",
    "mask.polarity",
    case="two keys, one masked",
    place="mask_scores",
    fingerprint="mask_inverted",
)
class LayerInvertsTheMask(Layer):
    """The mask is inverted on its way to the core."""

    def attend(self, q, k, v, options):
        if "mask" in options:
            options["mask"] = ~options["mask"]
        return super().attend(q, k, v, options)


@defect(
    "mask",
    "B031 opendilab/DI-engine#333",
    "mask.value",
    case="two keys, one masked",
    place="mask_scores",
    fingerprint="mask_ignored",
)
class LayerForgetsTheMask(Layer):
    """The mask is not handed on."""

    def attend(self, q, k, v, options):
        options.pop("mask", None)
        return super().attend(q, k, v, options)


@defect(
    "mask", "B026 line/lighthouse#77", "mask.per_sample", case="batch=2, masks differ", place="mask_scores"
)
class LayerTilesSampleMasks(Layer):
    """Per-sample masks are tiled over a fused batch and heads axis."""

    def attend(self, q, k, v, options):
        mask = options.get("mask")
        if mask is not None and mask.dim() == 4 and mask.shape[1] == 1:
            whole = mask.expand(q.shape[0], 1, q.shape[2], k.shape[2])[:, 0]
            options["mask"] = whole.repeat(self.heads, 1, 1).view(q.shape[0], self.heads, *whole.shape[1:])
        return super().attend(q, k, v, options)


@defect(
    "causal",
    "B049 keras-team/keras#23040",
    "causal.with_mask",
    case="causal and a mask",
    place="visible_positions",
)
class LayerIsCausalOrMasked(Layer):
    """With a mask the causal flag is not handed on."""

    def attend(self, q, k, v, options):
        if "mask" in options:
            options.pop("causal", None)
        return super().attend(q, k, v, options)


@defect(
    "causal",
    "B055 huggingface/transformers#48172",
    "causal.off",
    case="cross attention",
    place="visible_positions",
)
class LayerIsCausalInCrossAttention(Layer):
    """With fewer queries than keys the layer is causal, whatever the flag says."""

    def attend(self, q, k, v, options):
        if q.shape[2] != k.shape[2] and "mask" not in options:
            options["mask"] = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return super().attend(q, k, v, options)


@defect("error-handling", "B172 pytorch/pytorch#88669", "value.layer_plain", case="no biases", place="")
class LayerNeedsBiases(Layer):
    """Without biases the call raises."""

    def project_queries(self, x):
        return super().project_queries(x) + 0 * self.W_q.bias.sum()


@defect(
    "error-handling", "B173 keras-team/keras-hub#2213", "weights.shape", case="weights asked for", place=""
)
class LayerReturnsNoWeights(Layer):
    """Asked for weights, the layer gives None."""

    def forward(self, query, key=None, value=None, *, mask=None, causal=False, return_weights=False):
        result = super().forward(query, key, value, mask=mask, causal=causal)
        return (result, None) if return_weights else result


@defect("window/softcap/bias", "common learner error", "bias.value", case="a bias", place="add_bias")
class LayerForgetsTheBias(Layer):
    """The attention bias is not handed on."""

    def attend(self, q, k, v, options):
        options.pop("bias", None)
        return super().attend(q, k, v, options)


@defect(
    "scale", "B074 huggingface/transformers#43481", "scale.explicit", case="scale=2", place="scale_scores"
)
class LayerForgetsTheScale(Layer):
    """An explicit scale is not handed on."""

    def attend(self, q, k, v, options):
        options.pop("scale", None)
        return super().attend(q, k, v, options)
