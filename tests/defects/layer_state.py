"""Layers whose answer depends on a mode, an earlier call, another instance, or how they were stored."""

import torch
from torch import nn

from .bank import defect
from .reference import Layer


@defect(
    "dropout",
    "B128 pytorch/pytorch#124464",
    "dropout.eval_off",
    case="eval, p=1/2",
    place="drop_weights",
    fingerprint="dropout_in_eval",
)
class DropsInEval(Layer):
    """Dropout is handed to a functional call whatever the mode."""

    def attend(self, q, k, v, options):
        return self.core(q, k, v, dropout=self.dropout, return_weights=True, **options)


@defect(
    "dropout", "B130 zhouhaoyi/Informer2020#97", "dropout.train_on", case="train, p=1/2", place="drop_weights"
)
class NeverDrops(Layer):
    """The rate is taken and never used."""

    def attend(self, q, k, v, options):
        return self.core(q, k, v, return_weights=True, **options)


@defect("dropout", "common learner error", "dropout.rate_refused", case="p=-1/2", place="drop_weights")
class AnyRateIsTaken(Layer):
    """A rate outside 0 to 1 is cut to it without a word."""

    def __init__(self, d_model, heads, *, kv_heads=None, bias=True, dropout=0.0):
        super().__init__(d_model, heads, kv_heads=kv_heads, bias=bias, dropout=min(max(dropout, 0.0), 0.9))


@defect(
    "dropout", "B131 OpenNMT/OpenNMT-py#1830", "dropout.survivors", case="train, p=1/2", place="drop_weights"
)
class HalfTheRate(Layer):
    """Another, smaller rate is read for the weights."""

    def attend(self, q, k, v, options):
        dropout = self.dropout / 2 if self.training else 0.0
        return self.core(q, k, v, dropout=dropout, return_weights=True, **options)


@defect(
    "state/mutation",
    "B153 pytorch/pytorch#97128",
    "state.train_eval",
    case="eval and a mask",
    place="mask_scores",
)
class EvalFastPathIgnoresTheMask(Layer):
    """Only in training is the mask applied."""

    def attend(self, q, k, v, options):
        if not self.training:
            options.pop("mask", None)
        return super().attend(q, k, v, options)


@defect(
    "state/mutation",
    "B022 pytorch/pytorch#160064",
    "state.train_eval",
    case="train mode",
    place="scale_scores",
)
class TrainingPathIsUnscaled(Layer):
    """In train mode the scores are not scaled."""

    def attend(self, q, k, v, options):
        return super().attend(q, k, v, {"scale": 1.0, **options} if self.training else options)


@defect(
    "state/mutation", "common learner error", "state.weights_unchanged", case="any", place="project_queries"
)
class WeightsClippedInPlace(Layer):
    """The call clips the query projection in place."""

    def project_queries(self, x):
        with torch.no_grad():
            self.W_q.weight.clamp_(-0.1, 0.1)
        return super().project_queries(x)


@defect(
    "state/mutation",
    "common learner error",
    "state.second_call",
    case="a short call, then a longer one",
    place="visible_positions",
)
class CausalBufferFromTheFirstCall(Layer):
    """The causal mask of the first call is kept, and padded with True for longer ones."""

    kept = None

    def attend(self, q, k, v, options):
        if not options.pop("causal", False):
            return super().attend(q, k, v, options)
        q_len, kv_len = q.shape[2], k.shape[2]
        if self.kept is None:
            self.kept = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
        rows, columns = self.kept.shape
        mask = torch.ones(q_len, kv_len, dtype=torch.bool)
        mask[:rows, :columns] = self.kept[:q_len, :kv_len]
        given = options.pop("mask", None)
        return super().attend(q, k, v, {**options, "mask": mask if given is None else mask & given})


@defect(
    "state/mutation",
    "common learner error",
    "state.second_call",
    case="a call with a mask, then one of the same sizes without",
    place="mask_scores",
)
class MaskKeptForTheNextCall(Layer):
    """The mask of the latest call stays on the module, and serves calls of the same sizes without one."""

    kept = None

    def attend(self, q, k, v, options):
        if options.get("mask") is not None:
            self.kept = options["mask"]
        elif self.kept is not None and self.kept.shape[-2:] == (q.shape[2], k.shape[2]):
            options = {**options, "mask": self.kept if self.kept.shape[0] in (1, q.shape[0]) else None}
        return super().attend(q, k, v, options)


@defect(
    "state/mutation",
    "common learner error",
    "state.second_call",
    case="a call with a scale, then one without",
    place="scale_scores",
)
class ScaleSticks(Layer):
    """A scale that was handed over once becomes the default."""

    kept = None

    def attend(self, q, k, v, options):
        self.kept = options.get("scale") or self.kept
        return super().attend(q, k, v, {**options, "scale": self.kept})


@defect(
    "cache",
    "B138 huggingface/transformers#37078",
    "state.second_call",
    case="two calls",
    place="project_keys",
)
class KeysAccumulate(Layer):
    """Keys and values of an earlier call of the same batch stay and take part."""

    past = None

    def attend(self, q, k, v, options):
        if options.get("causal") or "mask" in options or q.shape[2] != k.shape[2]:
            return super().attend(q, k, v, options)
        before, self.past = self.past, (k.detach(), v.detach())
        if before is not None and before[0].shape[0] == k.shape[0]:
            k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        mixed, weights = super().attend(q, k, v, options)
        return mixed, weights[..., -q.shape[2] :]


@defect(
    "state/mutation",
    "common learner error",
    "state.instances",
    case="two layers of one size",
    place="project_output",
)
class InstancesShareABuffer(Layer):
    """The output projection is kept on the class: the layer that was made last wins."""

    latest: list = []  # noqa: RUF012 - shared by all instances, which is the defect

    def __init__(self, d_model, heads, *, kv_heads=None, bias=True, dropout=0.0):
        super().__init__(d_model, heads, kv_heads=kv_heads, bias=bias, dropout=dropout)
        self.latest[:] = [self.W_o]

    def project_output(self, merged):
        return self.latest[0](merged) if self.latest[0].in_features == self.d_model else self.W_o(merged)


@defect(
    "state/mutation", "B043 facebookresearch/xformers#1185", "state.deepcopy", case="a deep copy", place=""
)
class CopyLosesTheWeights(Layer):
    """A deep copy is a new layer with new weights."""

    def __deepcopy__(self, memo):
        return type(self)(self.d_model, self.heads, kv_heads=self.kv_heads, bias=self.W_q.bias is not None)


@defect(
    "state/mutation", "B043 facebookresearch/xformers#1185", "state.pickle", case="pickled and back", place=""
)
class PickleLosesTheHeads(Layer):
    """A pickled layer comes back with one head."""

    def __getstate__(self):
        return {**self.__dict__, "heads": 1, "kv_heads": 1, "d_k": self.d_model}


@defect(
    "state/mutation",
    "common learner error",
    "state.state_dict",
    case="saved and loaded",
    place="project_values",
)
class StateDictLosesTheValues(Layer):
    """The value projection is left out of the state dict, and loading does not ask for it."""

    def state_dict(self, *args, **kwargs):
        whole = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in whole.items() if "W_v" not in name}

    def load_state_dict(self, state, strict=True, assign=False):
        return super().load_state_dict(state, strict=False, assign=assign)


@defect(
    "state/mutation",
    "B144 common learner error",
    "state.inputs_unchanged",
    case="any",
    place="project_queries",
)
class InputScaledInPlace(Layer):
    """The input is scaled in place and scaled back."""

    def project_queries(self, x):
        if x.requires_grad:
            return super().project_queries(x)
        x *= 2.0
        projected = super().project_queries(x / 2.0)
        x /= 2.0
        return projected


@defect(
    "dtype",
    "B093 huggingface/transformers#18467",
    "dtype.module",
    "dtype.output",
    case="module.to(bfloat16)",
    place="",
)
class LeavesFloat32Behind(Layer):
    """The output projection stays in float32 when the module is moved."""

    def _apply(self, function, recurse=True):
        kept = self.W_o.weight.data, self.W_o.bias
        super()._apply(function, recurse)
        self.W_o.weight.data = kept[0].float()
        return self

    def project_output(self, merged):
        weight, bias = self.W_o.weight, self.W_o.bias
        return nn.functional.linear(merged.float(), weight, None if bias is None else bias.float())


@defect(
    "dtype", "B092 pytorch/pytorch#99012", "dtype.half_layer", case="bfloat16 layer", place="project_output"
)
class HalfLayerLosesBits(Layer):
    """In half precision projected tensors pass through eight bits."""

    def project_output(self, merged):
        half = merged.dtype in (torch.bfloat16, torch.float16)
        return super().project_output(merged.to(torch.float8_e5m2).to(merged.dtype) if half else merged)


@defect("edge-size", "B147 Dao-AILab/flash-attention#1159", "size.empty_layer", case="batch=0", place="")
class EmptyInputRaises(Layer):
    """An empty batch or sequence is refused."""

    def project_queries(self, x):
        x.detach().amax()
        return super().project_queries(x)


@defect(
    "layout/stride",
    "B109 common learner error",
    "layout.strided_inputs",
    case="a transposed input",
    place="split_heads",
)
class ViewsItsInput(Layer):
    """`.view` on the input raises where it is strided."""

    def project_queries(self, x):
        return super().project_queries(x.view(-1, x.shape[-1])).view(*x.shape[:2], -1)


@defect(
    "state/mutation",
    "sgl-project/sglang#29916",
    "state.weights_change",
    case="weights loaded after a call under no_grad",
    place="project_keys",
)
class ProjectionKeptWithoutGrad(Layer):
    """Without gradients a copy of the key projection, made at the first call, is used ever after."""

    def project_keys(self, x):
        if torch.is_grad_enabled():
            return super().project_keys(x)
        if not hasattr(self, "kept"):
            self.kept = self.W_k.weight.clone()
        return nn.functional.linear(x, self.kept, self.W_k.bias)


@defect(
    "state/mutation",
    "sgl-project/sglang#29916",
    "state.weights_change",
    case="weights loaded after a call in train mode",
    place="project_output",
)
class OutputProjectionOfTheFirstCall(Layer):
    """In train mode the output projection is a leaf that was taken from the parameter once."""

    def project_output(self, merged):
        if not self.training:
            return super().project_output(merged)
        if not hasattr(self, "kept"):
            self.kept = self.W_o.weight.T.contiguous()
        projected = merged @ self.kept
        return projected if self.W_o.bias is None else projected + self.W_o.bias


@defect("dtype", "common learner error", "state.conversion", case="to(float64) after a call")
class ScaleKeptInItsFirstDtype(Layer):
    """The scale is a tensor of the dtype of the first call."""

    def attend(self, q, k, v, options):
        if not hasattr(self, "factor"):
            self.factor = torch.tensor(self.d_k**-0.5, dtype=q.dtype)
        return super().attend(q, k, v, {"scale": float(self.factor), **options})


@defect("dtype", "B092 pytorch/pytorch#99012", "dtype.autocast", case="under autocast", place="merge_heads")
class MergesIntoTheInputsDtype(Layer):
    """Heads are written into a buffer of the inputs' dtype, which theirs is not under autocast."""

    def project_queries(self, x):
        self.buffer = x.new_zeros(x.shape)
        return super().project_queries(x)

    def merge_heads(self, mixed):
        merged = super().merge_heads(mixed)
        return self.buffer.scatter(2, torch.arange(self.d_model).expand_as(merged), merged)


@defect("dtype", "B092 pytorch/pytorch#99012", "dtype.autocast", case="under autocast")
class LosesBitsUnderAutocast(Layer):
    """Under autocast merged heads pass through eight bits."""

    def merge_heads(self, mixed):
        merged = super().merge_heads(mixed)
        return merged.to(torch.float8_e5m2).to(merged.dtype) if torch.is_autocast_enabled("cpu") else merged


@defect(
    "state/mutation",
    "B043 facebookresearch/xformers#1185",
    "state.copied_after_call",
    case="called",
    place="",
)
class KeepsItsGraph(Layer):
    """The merged heads of the latest call stay in the module, with the graph behind them."""

    def merge_heads(self, mixed):
        self.latest = super().merge_heads(mixed)
        return self.latest
