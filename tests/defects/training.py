"""What shows in training, in half precision, or with large numbers only."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .bank import defect
from .gradient import Backward
from .reference import INF, Core, Layer, wide, zero_dead_rows

OWN = "a kind of its own"
HALF = (torch.float16, torch.bfloat16)


@defect("gradient", OWN, "gradient.combined", case="bfloat16 and a bias")
class HalfBiasIsAConstant(Core):
    """In half precision the bias is cut off from the graph."""

    def add_bias(self, scores, call):
        return scores + (call.bias.detach() if call.bias.dtype in HALF else call.bias)


@defect("gradient", OWN, "gradient.combined", case="scale 0", place="scale_scores")
class GradientDividedByTheScale(Core):
    """The gradient of the scores is divided by the scale and multiplied again."""

    def scale_scores(self, scores, query, call):
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        scaled = super().scale_scores(scores, query, call)
        return Backward.apply(scaled, lambda grad, _: grad / torch.tensor(factor) * factor)


@defect("gradient", OWN, "gradient.combined", case="bfloat16 and a mask", place="mask_scores")
class HalfMaskCutsTheGraph(Core):
    """In half precision a mask is applied to scores without their graph."""

    def mask_scores(self, scores, seen, call):
        half = call.notes.get("half") and call.mask is not None
        return super().mask_scores(scores.detach() if half else scores, seen, call)

    def attend(self, query, key, value, call):
        call.notes["half"] = query.dtype in HALF
        return super().attend(query, key, value, call)


@defect(
    "gradient", OWN, "gradient.hidden_extremes", case="a hidden key with a large score", place="normalise"
)
class ExponentialBeforeTheMask(Core):
    """Powers are taken of all scores, and those of hidden ones thrown away."""

    def mask_scores(self, scores, seen, call):
        return scores

    def normalise(self, scores, seen, call):
        top = scores.detach().masked_fill(~seen, -INF).amax(-1, keepdim=True) if scores.shape[-1] else 0.0
        top = top.clamp_min(-1e30) if scores.shape[-1] else top
        powers = torch.where(seen, torch.exp(scores - top), 0.0)
        total = powers.sum(-1, keepdim=True)
        return powers / total.masked_fill(total == 0, 1.0)


@defect("gradient", OWN, "gradient.upstream", case="output.sum()", place="")
class NeedsADenseUpstream(Core):
    """The backward pass reads the gradient that arrives by the strides of the output."""

    def hand_back(self, output, weights, query, call):
        output = Backward.apply(output, lambda grad, tensor: grad.as_strided(tensor.shape, tensor.stride()))
        return super().hand_back(output, weights, query, call)


class Spoils(torch.autograd.Function):
    """The softmax of all, whose backward pass uses up what was saved."""

    @staticmethod
    def forward(ctx, scores):
        ctx.weights = zero_dead_rows(scores)
        return ctx.weights.clone()

    @staticmethod
    def backward(ctx, grad):
        weights = ctx.weights
        spread = grad - (grad * weights).sum(-1, keepdim=True)
        return weights.mul_(spread)


@defect("gradient", OWN, "gradient.upstream", case="backward twice", place="normalise")
class BackwardUsesUpTheWeights(Core):
    """A second backward pass over the same graph starts from what the first one left."""

    def normalise(self, scores, seen, call):
        return Spoils.apply(scores)


@defect("gradient", OWN, "weights.gradient", case="return_weights=True", place="")
class AskingForWeightsCutsTheGraph(Core):
    """Where weights are asked for, the output comes without its graph."""

    def hand_back(self, output, weights, query, call):
        return super().hand_back(output.detach() if call.return_weights else output, weights, query, call)


@defect("gradient", OWN, "gradient.long", case="q_len=258", place="scores")
class KeyGradientOfTheLastBlock(Core):
    """Past 256 queries keys get the gradient of the last 256 alone."""

    def scores(self, query, key, call):
        early = query[..., : max(0, query.shape[2] - 256), :]
        late = query[..., early.shape[2] :, :]
        return torch.cat([wide(early) @ wide(key).detach().mT, wide(late) @ wide(key).mT], -2)


@defect("dropout", OWN, "dropout.share", case="p=1/20")
class SmallRatesDropNothing(Core):
    """A rate below a tenth is taken for none."""

    def drop_weights(self, weights, call):
        return nn.functional.dropout(weights, call.dropout) if call.dropout >= 0.1 else weights


@defect("dropout", OWN, "dropout.per_element", case="p=1/2, grouped")
class GroupsShareTheirDropout(Core):
    """All query heads of one key head drop the same weights."""

    def attend(self, query, key, value, call):
        call.notes["group"] = query.shape[1] // max(key.shape[1], 1)
        return super().attend(query, key, value, call)

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        group = call.notes["group"]
        kept = nn.functional.dropout(torch.ones_like(weights[:, ::group]), call.dropout)
        return weights * kept.repeat_interleave(group, 1)


@defect("dropout", OWN, "dropout.per_element", case="p=1/2, q_len=12")
class RowsDropInTurn(Core):
    """The pattern of dropped weights is made for four queries and used again."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        kept = nn.functional.dropout(torch.ones_like(weights[:, :, :4]), call.dropout)
        return weights * kept.repeat(1, 1, -(-weights.shape[2] // 4), 1)[:, :, : weights.shape[2]]


@defect("softmax-numerics", OWN, "value.magnitude", case="a large key", place="scores")
class KeysAreClamped(Core):
    """Keys are held within ten thousand."""

    def scores(self, query, key, call):
        return super().scores(query, key.clamp(-1e4, 1e4), call)


@defect("softmax-numerics", OWN, "value.magnitude", case="a large value", place="aggregate_values")
class ValuesFitHalf(Core):
    """Values are held within what float16 can hold, in every dtype."""

    def aggregate_values(self, weights, value, seen):
        return super().aggregate_values(weights, value.clamp(-65504, 65504), seen)


@defect("window/softcap/bias", OWN, "value.magnitude", case="a large negative bias")
class BiasIsClamped(Core):
    """A bias below minus ten thousand is taken for minus ten thousand."""

    def add_bias(self, scores, call):
        return scores + call.bias.clamp_min(-1e4)


@defect("softmax-numerics", "common learner error", "value.nan_scores", case="a query of NaN")
class EveryNaNIsCleared(Core):
    """Rows that see nothing are cleared with `nan_to_num`, and all other NaN with them."""

    def normalise(self, scores, seen, call):
        return scores.softmax(-1).nan_to_num(0.0)


@defect("mask", OWN, "mask.dead_row.zero", case="float16, a row that sees nothing", place="mask_scores")
class HalfFillsWithTenThousand(Core):
    """In float16 what is hidden gets a score of minus ten thousand."""

    def attend(self, query, key, value, call):
        call.notes["fill"] = -1e4 if query.dtype == torch.float16 else -INF
        return super().attend(query, key, value, call)

    def mask_scores(self, scores, seen, call):
        return scores.masked_fill(~seen, call.notes["fill"])


@defect("causal", OWN, "causal.future", case="bfloat16, 258 positions", place="visible_positions")
class PositionsInTheDtype(Core):
    """Positions are counted in the dtype of the query."""

    def attend(self, query, key, value, call):
        call.notes["dtype"] = query.dtype
        return super().attend(query, key, value, call)

    def visible_positions(self, q_len, kv_len, call):
        if call.window is not None or not call.causal:
            return super().visible_positions(q_len, kv_len, call)
        counted = (torch.arange(n, dtype=torch.float64).to(call.notes["dtype"]) for n in (q_len, kv_len))
        rows, columns = counted
        return columns <= rows[:, None] + (kv_len - q_len)


@defect("edge-size", OWN, "size.blocks", case="q_len=513, causal", place="visible_positions")
class CausalAnewPerChunk(Core):
    """Queries are taken 512 at a time, and each chunk's causal mask starts at its own first query."""

    def visible_positions(self, q_len, kv_len, call):
        if q_len <= 512:
            return super().visible_positions(q_len, kv_len, call)
        chunks = [
            super(CausalAnewPerChunk, self).visible_positions(n, kv_len, call) for n in (512, q_len - 512)
        ]
        return None if chunks[0] is None else torch.cat(chunks)


@defect("edge-size", OWN, "size.blocks", case="q_len * kv_len > 2**15", place="mask_scores")
class ManyScoresShareAMask(Core):
    """Past so many scores the mask of the first head serves all."""

    def read_mask(self, mask, query, key, call):
        many = mask.dim() == 4 and query.shape[2] * key.shape[2] > 2**15
        return mask[:, :1] if many else mask


@defect("scale", OWN, "scale.explicit", case="scale=2")
class WholeScalesIgnored(Core):
    """A scale counts only if it is a float."""

    def scale_scores(self, scores, query, call):
        given = call.scale if isinstance(call.scale, float) else None
        return scores * (query.shape[-1] ** -0.5 if given is None else given)


@defect("scale", OWN, "scale.explicit", case="scale=400")
class LargeScalesCut(Core):
    """A scale is held within a hundred."""

    def scale_scores(self, scores, query, call):
        return scores * (
            query.shape[-1] ** -0.5 if call.scale is None else max(-100.0, min(100.0, call.scale))
        )


@defect("layout/stride", OWN, "size.coincidence", case="a key stored for the product, kv_len = d_k")
class StridesTellTheTranspose(Core):
    """A square key whose positions lie side by side in memory is taken for one that is transposed already."""

    def attend(self, query, key, value, call):
        ready = key.shape[-1] == key.shape[-2] > 1 and key.stride(-2) == 1
        return super().attend(query, key.mT if ready else key, value, call)


@defect("mask", OWN, "mask.value", case="a mask whose corners look causal", place="mask_scores")
class CornersTellCausality(Core):
    """A square mask with the corners of a causal one is replaced by that."""

    def read_mask(self, mask, query, key, call):
        q_len, kv_len = query.shape[2], key.shape[2]
        square = mask.shape[-2:] == (q_len, kv_len) and q_len == kv_len > 2
        if not square or bool(mask[..., 0, -1].any()) or not bool(mask[..., -1, 0].all()):
            return mask
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril().expand_as(mask)


@defect("gradient", OWN, "gradient.train_mode", case="train mode")
class TrainModeForgetsTheKeys(Layer):
    """In train mode keys are cut off from the graph."""

    def project_keys(self, x):
        projected = super().project_keys(x)
        return projected.detach() if self.training else projected


@defect("gradient", OWN, "gradient.train_mode", case="two calls in train mode", place="")
class ClearsItsGradients(Layer):
    """A call in train mode throws away the gradients of the calls before."""

    def project_queries(self, x):
        if self.training:
            self.zero_grad(set_to_none=True)
        return super().project_queries(x)


@defect("gradient", OWN, "gradient.frozen", case="every parameter frozen", place="")
class FrozenMeansNoGraph(Layer):
    """With frozen weights nothing is recorded, though the inputs may ask for a gradient."""

    def forward(self, query, *others, **options):
        frozen = not any(p.requires_grad for p in self.parameters())
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            return super().forward(query, *others, **options)


@defect("dropout", OWN, "dropout.gradient", case="p=1/2, recomputed in the backward pass", place="")
class RecomputedWithOtherNumbers(Layer):
    """The attention is computed anew in the backward pass, and drops other weights there."""

    def attend(self, q, k, v, options):
        if not (self.training and torch.is_grad_enabled()):
            return super().attend(q, k, v, options)
        run = super().attend
        return checkpoint(
            lambda *heads: run(*heads, options), q, k, v, use_reentrant=False, preserve_rng_state=False
        )
