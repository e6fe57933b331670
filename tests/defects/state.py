"""Calls that write to what they were given, remember what they should not, or leave settings changed."""

import torch

from .bank import defect
from .reference import INF, Core, zero_dead_rows


@defect(
    "state/mutation", "B144 common learner error", "state.inputs_unchanged", case="any", place="scale_scores"
)
class QueryScaledInPlace(Core):
    """The query is scaled in place."""

    def scale_scores(self, scores, query, call):
        return scores

    def scores(self, query, key, call):
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        if query.requires_grad:
            query = query * factor
        else:
            query.mul_(factor)
        return super().scores(query, key, call)


@defect(
    "state/mutation",
    "B041 pytorch/pytorch#130209",
    "state.inputs_unchanged",
    case="a bias and a mask",
    place="add_bias",
)
class MaskWrittenIntoTheBias(Core):
    """The mask is merged into the caller's bias in place."""

    def add_bias(self, scores, call):
        if call.mask is not None and not call.bias.requires_grad:
            whole = call.mask.expand_as(scores)
            if call.bias.shape == whole.shape:
                call.bias.masked_fill_(~whole, -INF)
        return super().add_bias(scores, call)


@defect(
    "state/mutation",
    "B041 pytorch/pytorch#130209",
    "bias.with_mask",
    case="a mask of samples",
    place="mask_scores",
)
class MaskAddedIntoAMatrix(Core):
    """The mask of the first sample and head is merged into one matrix for all."""

    def visible(self, query, key, call):
        seen = super().visible(query, key, call)
        return seen[:1, :1].expand_as(seen) if call.bias is not None and seen.numel() else seen


@defect(
    "state/mutation",
    "B144 common learner error",
    "state.inputs_unchanged",
    case="a mask and causal",
    place="mask_scores",
)
class MaskNarrowedInPlace(Core):
    """The causal rule is written into the caller's mask."""

    def read_mask(self, mask, query, key, call):
        if call.causal and mask.shape[-2:] == (query.shape[2], key.shape[2]):
            mask &= self.visible_positions(query.shape[2], key.shape[2], call)
        return mask


@defect(
    "state/mutation", "B144 common learner error", "state.inputs_unchanged", case="no_grad", place="scores"
)
class WritesOnlyWithoutGrad(Core):
    """Under `no_grad` the query is used as working memory and put back nearly as it was."""

    def scores(self, query, key, call):
        if torch.is_grad_enabled() or query.requires_grad:
            return super().scores(query, key, call)
        query *= 3.0
        scores = super().scores(query, key, call) / 3.0
        query /= 3.0
        return scores


@defect(
    "state/mutation",
    "B144 common learner error",
    "state.inputs_unchanged",
    case="a hidden key",
    place="mask_scores",
)
class HiddenValuesZeroedInPlace(Core):
    """Values that nobody sees are zeroed in the caller's tensor."""

    def aggregate_values(self, weights, value, seen):
        if not value.requires_grad and value.dtype == weights.dtype:
            value = value.masked_fill_(~seen.any(-2)[..., None], 0.0)
        return super().aggregate_values(weights, value, seen)

    def share_heads(self, tensor, group):
        return tensor if group == 1 else super().share_heads(tensor, group)


@defect("state/mutation", "common learner error", "state.no_alias", case="one key", place="aggregate_values")
class OneKeyGivesAView(Core):
    """With one key the value itself comes back."""

    def attend(self, query, key, value, call):
        plain = call.mask is None and not call.dropout and not call.return_weights and not call.causal
        if plain and key.shape[2] == query.shape[2] == 1 and key.shape[1] == query.shape[1]:
            return value.view(value.shape)
        return super().attend(query, key, value, call)


@defect(
    "state/mutation",
    "common learner error",
    "state.no_alias",
    "state.output_kept",
    case="two calls",
    place="aggregate_values",
)
class OutputBufferReused(Core):
    """Outputs of one shape share one buffer."""

    def __init__(self):
        self.buffers = {}

    def hand_back(self, output, weights, query, call):
        if not output.requires_grad:
            buffer = self.buffers.setdefault((output.shape, output.dtype), torch.empty_like(output))
            output = buffer.copy_(output)
        return super().hand_back(output, weights, query, call)


@defect(
    "state/mutation",
    "common learner error",
    "state.second_call",
    place="visible_positions",
    case="q_len=3 with 4 keys, then with 7",
)
class CausalMaskCachedByQueries(Core):
    """The causal mask is kept by the number of queries alone, and cut or padded to the keys."""

    def __init__(self):
        self.kept = {}

    def visible_positions(self, q_len, kv_len, call):
        if not call.causal:
            return None
        if q_len not in self.kept:
            self.kept[q_len] = super().visible_positions(q_len, kv_len, call)
        kept = self.kept[q_len][:, :kv_len]
        return torch.nn.functional.pad(kept, (0, kv_len - kept.shape[1]), value=True)


@defect(
    "state/mutation",
    "common learner error",
    "state.second_call",
    "mask.value",
    place="mask_scores",
    case="two masks of one shape",
)
class MaskCachedByShape(Core):
    """The first mask of a shape serves all later ones."""

    def __init__(self):
        self.kept = {}

    def read_mask(self, mask, query, key, call):
        return self.kept.setdefault(tuple(mask.shape), mask.clone())


@defect(
    "cache",
    "B138 huggingface/transformers#37078",
    "state.second_call",
    "value.roles",
    place="scores",
    case="two calls of one shape",
)
class KeysKeptByShape(Core):
    """The keys of the first call of a shape are used again."""

    def __init__(self):
        self.kept = {}

    def scores(self, query, key, call):
        key = self.kept.setdefault((tuple(key.shape), key.dtype), key.detach().clone())
        return super().scores(query, key, call)


@defect(
    "state/mutation",
    "common learner error",
    "state.second_call",
    place="mask_scores",
    case="a mask, then none",
)
class MaskStaysForTheNextCall(Core):
    """A call without a mask uses the last one whose shape fits."""

    def __init__(self):
        self.last = None

    def visible(self, query, key, call):
        whole = (*query.shape[:3], key.shape[2])
        if call.mask is None and self.last is not None and self.last.shape == whole:
            return self.last
        seen = super().visible(query, key, call)
        self.last = seen if call.mask is not None else self.last
        return seen


@defect(
    "state/mutation",
    "common learner error",
    "state.second_call",
    place="scale_scores",
    case="another width before",
)
class ScaleKeptFromTheFirstCall(Core):
    """The scale is computed once."""

    factor = None

    def scale_scores(self, scores, query, call):
        if call.scale is not None:
            return scores * call.scale
        self.factor = self.factor or query.shape[-1] ** -0.5
        return scores * self.factor


@defect("state/mutation", "common learner error", "state.settings", case="any", place="")
class DefaultDtypeChanged(Core):
    """The default dtype is set to that of the query and stays."""

    def attend(self, query, key, value, call):
        torch.set_default_dtype(torch.float64)
        return super().attend(query, key, value, call)


@defect("state/mutation", "common learner error", "state.settings", case="any", place="")
class GradModeChanged(Core):
    """Gradients are switched on and stay on."""

    def attend(self, query, key, value, call):
        torch.set_grad_enabled(True)
        return super().attend(query, key, value, call)


@defect("state/mutation", "common learner error", "state.settings", case="any", place="")
class ThreadsChanged(Core):
    """The number of threads is set and stays."""

    def attend(self, query, key, value, call):
        torch.set_num_threads(2 if torch.get_num_threads() != 2 else 1)
        return super().attend(query, key, value, call)


@defect("determinism", "common learner error", "determinism.no_random", case="any", place="")
class GlobalSeedSet(Core):
    """The global seed is set at every call."""

    def attend(self, query, key, value, call):
        torch.manual_seed(0)
        return super().attend(query, key, value, call)


@defect(
    "determinism",
    "B136 facebookresearch/xformers#624",
    "determinism.repeat",
    case="two calls",
    place="scale_scores",
)
class NoiseInTheLastBits(Core):
    """Every other call rounds differently."""

    def __init__(self):
        self.calls = 0

    def scale_scores(self, scores, query, call):
        self.calls += 1
        scaled = super().scale_scores(scores, query, call)
        return scaled * (1.0 + (self.calls % 2) * 2.0**-22)


@defect(
    "determinism",
    "B137 fla-org/flash-linear-attention#1105",
    "determinism.repeat",
    "size.blocks",
    case="kv_len=33",
)
class ReadsUnwrittenMemory(Core):
    """Weights past a whole tile of 32 are added to a buffer that was never cleared."""

    def __init__(self):
        self.dirt = 0.0

    def normalise(self, scores, seen, call):
        weights = super().normalise(scores, seen, call)
        if scores.shape[-1] <= 32:
            return weights
        self.dirt += 0.001
        return torch.cat([weights[..., :32], weights[..., 32:] + self.dirt], -1)


class _Drifts(torch.autograd.Function):
    """Its backward pass gives a little more every time."""

    times = 0

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        _Drifts.times += 1
        return grad * (1.0 + (_Drifts.times % 2) * 2.0**-22)


@defect(
    "determinism",
    "B135 pytorch/pytorch#123656",
    "determinism.gradient",
    case="two backward passes",
    place="scores",
)
class GradientNotRepeatable(Core):
    """Two backward passes differ in the last bits."""

    def scores(self, query, key, call):
        return super().scores(_Drifts.apply(query), key, call)


@defect(
    "state/mutation",
    "B022 pytorch/pytorch#160064",
    "state.grad_mode",
    "state.inference_mode",
    place="mask_scores",
    case="a mask under no_grad",
)
class FastPathIgnoresTheMask(Core):
    """Without grad a fast path runs that does not look at the mask."""

    def visible(self, query, key, call):
        if torch.is_grad_enabled():
            return super().visible(query, key, call)
        return torch.ones(*query.shape[:3], key.shape[2], dtype=torch.bool)


@defect(
    "state/mutation",
    "common learner error",
    "state.inference_mode",
    case="inference mode, then training",
    place="scale_scores",
)
class InferenceTensorKept(Core):
    """A tensor made in inference mode is kept and later saved for a backward pass."""

    def __init__(self):
        self.kept = {}

    def scale_scores(self, scores, query, call):
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        kept = self.kept.setdefault((factor, scores.dtype), torch.tensor(factor, dtype=scores.dtype))
        return scores * kept


@defect(
    "state/mutation", "common learner error", "state.grad_mode", place="normalise", case="gradients recorded"
)
class TrainingPathIsHalf(Core):
    """When gradients are recorded the weights are stored in bfloat16 to save memory."""

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores)
        if not scores.requires_grad:
            return weights
        return weights + (weights.to(torch.bfloat16).to(weights.dtype) - weights).detach()
