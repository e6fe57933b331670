"""The output is right, its gradient is not."""

import torch

from .bank import defect
from .reference import Core, zero_dead_rows


class Backward(torch.autograd.Function):
    """The identity, with a gradient that `change(gradient, tensor)` has changed."""

    @staticmethod
    def forward(ctx, tensor, change):
        ctx.change = change
        ctx.save_for_backward(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad, *ctx.saved_tensors), None


class _Changes(Core):
    """Changes the gradient of some of query, key and value."""

    changed: tuple[str, ...] = ()

    def change(self, grad, tensor):
        """Return a wrong gradient."""
        raise NotImplementedError

    def attend(self, query, key, value, call):
        tensors = {"query": query, "key": key, "value": value}
        for name in self.changed:
            tensors[name] = Backward.apply(tensors[name], self.change)
        return super().attend(*tensors.values(), call)


@defect("gradient", "common learner error", "gradient.value", case="backward", place="aggregate_values")
class ValueDetached(Core):
    """The value is cut off from the graph."""

    def aggregate_values(self, weights, value, seen):
        return super().aggregate_values(weights, value.detach(), seen)


@defect(
    "gradient", "common learner error", "gradient.query", "gradient.key", case="backward", place="normalise"
)
class WeightsDetached(Core):
    """The weights are cut off from the graph: only the values learn."""

    def normalise(self, scores, seen, call):
        return super().normalise(scores.detach(), seen, call)


@defect("gradient", "common learner error", "gradient.key", case="backward", place="scores")
class KeyDetached(Core):
    """The key is cut off from the graph."""

    def scores(self, query, key, call):
        return super().scores(query, key.detach(), call)


@defect("gradient", "common learner error", "gradient.query", case="backward", place="scores")
class NoGradientAtAll(Core):
    """The core runs under `no_grad`."""

    def attend(self, query, key, value, call):
        with torch.no_grad():
            return super().attend(query, key, value, call)


@defect(
    "gradient",
    "B094 marin-community/levanter#449",
    "grouped.gradient",
    case="heads=2, kv_heads=1",
    place="share_heads",
)
class OnlyOneHeadOfTheGroupCounts(Core):
    """The gradient of a shared head is that of its first query head."""

    def share_heads(self, tensor, group):
        whole = super().share_heads(tensor, group)
        first = (torch.arange(whole.shape[1]) % max(group, 1) == 0)[:, None, None]
        return torch.where(first, whole, whole.detach())


@defect(
    "gradient",
    "B094 marin-community/levanter#449",
    "grouped.gradient",
    case="heads=2, kv_heads=1",
    place="share_heads",
)
class GroupGradientAveraged(Core):
    """The gradient of a shared head is the mean over its group, not the sum."""

    def share_heads(self, tensor, group):
        return super().share_heads(Backward.apply(tensor, lambda grad, _: grad / max(group, 1)), group)


class _GroupedBackward(torch.autograd.Function):
    """Repeats heads, and collects the gradient by the wrong count."""

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        return tensor.repeat_interleave(group, 1)

    @staticmethod
    def backward(ctx, grad):
        batch, heads, length, width = grad.shape
        return grad.view(batch, ctx.group, heads // ctx.group, length, width).sum(1), None


@defect(
    "gradient",
    "B095 XunhaoLai/native-sparse-attention-triton#27",
    "grouped.gradient",
    case="heads=4, kv_heads=2",
    place="share_heads",
)
class GroupGradientTiled(Core):
    """Forward repeats heads, backward collects them as if they were tiled."""

    def share_heads(self, tensor, group):
        return _GroupedBackward.apply(tensor, group) if group > 1 else tensor


@defect("gradient", "common learner error", "gradient.query", case="backward", place="scale_scores")
class QueryGradientUnscaled(_Changes):
    """The hand-written gradient of the query lacks the scale."""

    changed = ("query",)

    def change(self, grad, tensor):
        return grad * tensor.shape[-1] ** 0.5


class _SoftmaxBackward(torch.autograd.Function):
    """A softmax whose backward pass forgets the row's mean."""

    @staticmethod
    def forward(ctx, scores):
        weights = zero_dead_rows(scores)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        return grad * weights


@defect(
    "gradient",
    "common learner error",
    "gradient.query",
    "gradient.key",
    case="two keys, backward",
    place="normalise",
)
class SoftmaxBackwardWithoutTheMean(Core):
    """The softmax's backward pass does not subtract the row's weighted mean."""

    def normalise(self, scores, seen, call):
        return _SoftmaxBackward.apply(scores)


@defect(
    "gradient",
    "common learner error",
    "gradient.query",
    "gradient.key",
    case="two keys, backward",
    place="normalise",
)
class StraightThrough(Core):
    """The gradient passes the softmax unchanged."""

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores).detach()
        flow = scores.masked_fill(~seen, 0.0)
        return weights + flow - flow.detach()


@defect(
    "gradient",
    "B101 pytorch/pytorch#188302",
    "gradient.alone",
    case="only the key requires a gradient",
    place="scores",
)
class NeedsTheQuerysGradient(Core):
    """What backward needs is kept only if the query requires a gradient."""

    def scores(self, query, key, call):
        lonely = torch.is_grad_enabled() and not query.requires_grad
        return super().scores(query, key.detach() if lonely else key, call)


@defect(
    "gradient",
    "B101 pytorch/pytorch#188302",
    "bias.gradient",
    case="only the bias requires a gradient",
    place="add_bias",
)
class LonelyBiasGetsNothing(Core):
    """The bias gets a gradient only beside queries, keys and values."""

    def add_bias(self, scores, call):
        return scores + (call.bias if scores.requires_grad else call.bias.detach() + 0 * call.bias)


@defect("gradient", "common learner error", "bias.gradient", case="a broadcast bias", place="add_bias")
class BiasGradientAveraged(Core):
    """The gradient of a broadcast bias is the mean over the batch, not the sum."""

    def add_bias(self, scores, call):
        count = scores.shape[0] // max(call.bias.shape[0], 1)
        return scores + Backward.apply(call.bias, lambda grad, _: grad / max(count, 1))


@defect(
    "gradient",
    "B104 Dao-AILab/flash-attention#2541",
    "gradient.layout",
    case="strided upstream gradient",
    place="aggregate_values",
)
class BackwardReadsMemoryOrder(_Changes):
    """Backward reads a strided tensor's gradient in memory order."""

    changed = ("value",)

    def change(self, grad, tensor):
        if tensor.is_contiguous() or not tensor.numel():
            return grad
        order = sorted(range(4), key=lambda axis: -tensor.stride(axis))
        return grad.permute(order).reshape(grad.shape)


@defect(
    "gradient",
    "B103 Dao-AILab/flash-attention#2552",
    "gradient.value",
    case="d_v=7, d_k=3",
    place="aggregate_values",
)
class ValueGradientByTheKeyWidth(Core):
    """The value's gradient is written as far as the keys are wide."""

    def attend(self, query, key, value, call):
        width = query.shape[-1]

        def cut(grad, _):
            return grad.masked_fill(torch.arange(grad.shape[-1]) >= width, 0.0)

        return super().attend(query, key, Backward.apply(value, cut), call)


@defect(
    "gradient", "common learner error", "gradient.hidden", case="a hidden key, backward", place="normalise"
)
class HiddenKeysAreTrained(Core):
    """Hidden weights are zero forward and pass a gradient backward."""

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores)
        ghost = (call.notes["raw"] * ~seen).sum(-1, keepdim=True) * 0.1
        return weights + ghost - ghost.detach()

    def mask_scores(self, scores, seen, call):
        call.notes["raw"] = scores
        return super().mask_scores(scores, seen, call)


@defect(
    "gradient",
    "B137 fla-org/flash-linear-attention#1105",
    "gradient.long",
    case="kv_len=65, backward",
    place="scores",
)
class BackwardDropsTheTail(_Changes):
    """Backward leaves out the keys past the last whole block of 64."""

    changed = ("key", "value")

    def change(self, grad, tensor):
        length = grad.shape[2]
        kept = length // 64 * 64 if length > 64 else length
        return grad.masked_fill(torch.arange(length)[:, None] >= kept, 0.0)


@defect("gradient", "B135 pytorch/pytorch#123656", "gradient.half", case="bfloat16, backward", place="scores")
class BackwardInFewerBits(_Changes):
    """In half precision gradients pass through eight bits."""

    changed = ("query", "key", "value")

    def change(self, grad, tensor):
        half = grad.dtype in (torch.bfloat16, torch.float16)
        return grad.to(torch.float8_e5m2).to(grad.dtype) if half else grad


@defect(
    "gradient", "common learner error", "dtype.float64_gradient", case="float64, backward", place="scores"
)
class BackwardInFloat32(_Changes):
    """Gradients are computed in float32 whatever comes in."""

    changed = ("query", "key", "value")

    def change(self, grad, tensor):
        return grad.float().to(grad.dtype)


@defect(
    "gradient",
    "common learner error",
    "gradient.value",
    case="an upstream gradient above 1",
    place="aggregate_values",
)
class GradientClipped(_Changes):
    """Gradients are clipped to 1/2 inside."""

    changed = ("query", "key", "value")

    def change(self, grad, tensor):
        return grad.clamp(-0.5, 0.5)


@defect(
    "gradient",
    "B205 Dao-AILab/flash-attention#2324",
    "gradient.hidden",
    case="a padded key, backward",
    place="aggregate_values",
)
class HiddenGradientUnwritten(Core):
    """The gradient of keys that nobody sees is whatever the buffer held."""

    def aggregate_values(self, weights, value, seen):
        hidden = ~seen.any(-2)[..., None]
        value = Backward.apply(value, lambda grad, _: grad.masked_fill(hidden, 7.0))
        return super().aggregate_values(weights, value, seen)


@defect("gradient", "common learner error", "gradient.query", case="a mask, backward", place="mask_scores")
class MaskedPathIsDetached(Core):
    """With a mask the scores are rebuilt from data and lose the graph."""

    def mask_scores(self, scores, seen, call):
        return super().mask_scores(scores.detach() if call.mask is not None else scores, seen, call)


@defect(
    "gradient",
    "common learner error",
    "gradient.key",
    "causal.future_gradient",
    case="causal, backward",
    place="visible_positions",
)
class BackwardIsNotCausal(Core):
    """Backward spreads the weights' gradient over hidden keys as well."""

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores)
        if not call.causal:
            return weights
        soft = call.notes["raw"].softmax(-1)
        return soft + (weights - soft).detach()

    def mask_scores(self, scores, seen, call):
        call.notes["raw"] = scores
        return super().mask_scores(scores, seen, call)
