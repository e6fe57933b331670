"""Axes mixed up before or after the attention itself: the shapes fit, the content is elsewhere."""

import torch

from .bank import defect
from .reference import Core, wide


@defect(
    "shape",
    "B006 huggingface/diffusers#10303",
    "value.plain",
    "value.batch_independent",
    place="heads_first",
    case="heads != length",
    fingerprint="heads_and_positions_swapped",
)
class ReadsHeadsLast(Core):
    """Tensors are read as `batch seq heads d_k` though they come as `batch heads seq d_k`."""

    def attend(self, query, key, value, call):
        if call.mask is not None or query.shape[2] != key.shape[2] or query.shape[1] != key.shape[1]:
            return super().attend(query, key, value, call)
        output = super().attend(*(t.transpose(1, 2) for t in (query, key, value)), call)
        return output.transpose(1, 2) if not call.return_weights else (output[0].transpose(1, 2), output[1])


@defect(
    "shape",
    "B003 meta-pytorch/opacus#825",
    "value.plain",
    "value.permute_heads",
    place="merge_heads",
    case="heads=2, q_len=2, d_v=1",
    fingerprint="merged_by_view",
)
class OutputByView(Core):
    """The output goes through `batch q_len heads d_v` and comes back by a view, not a transpose."""

    def hand_back(self, output, weights, query, call):
        output = output.transpose(1, 2).reshape(output.shape)
        return super().hand_back(output, weights, query, call)


@defect(
    "shape",
    "B003 meta-pytorch/opacus#825",
    "shape.cross",
    "value.plain",
    place="merge_heads",
    case="q_len=1, kv_len=2, heads=2, batch=1, d_v=2",
)
class OutputByViewWhenCross(Core):
    """Only where the lengths differ is the output rearranged by a view."""

    def hand_back(self, output, weights, query, call):
        if output.shape[2] != weights.shape[-1]:
            output = output.transpose(-1, -2).reshape(output.shape)
        return super().hand_back(output, weights, query, call)


@defect(
    "shape",
    "B005 onnx/onnx#7118",
    "value.plain",
    place="scores",
    case="kv_len=2, d_k=2",
    fingerprint="key_viewed_not_transposed",
)
class KeyByView(Core):
    """The key is reshaped to `d_k kv_len` instead of being transposed."""

    def scores(self, query, key, call):
        return wide(query) @ wide(key).reshape(*key.shape[:2], key.shape[3], key.shape[2])


@defect(
    "shape",
    "B001 reczoo/FuxiCTR#30",
    "value.plain",
    "value.permute_heads",
    place="split_heads",
    case="heads=2, length=2",
    fingerprint="split_by_view",
)
class SplitByView(Core):
    """Heads and positions are laid out anew by a view."""

    def attend(self, query, key, value, call):
        def again(t):
            return t.transpose(1, 2).reshape(t.shape)

        return super().attend(again(query), again(key), again(value), call)


@defect(
    "shape",
    "common learner error",
    "value.roles",
    "value.plain",
    place="scores",
    case="q_len = kv_len = 2",
    fingerprint="query_and_key_swapped",
)
class QueryAndKeySwapped(Core):
    """Keys ask and queries answer, where the lengths allow it."""

    def scores(self, query, key, call):
        if query.shape != key.shape:
            return super().scores(query, key, call)
        return super().scores(key, query, call)


@defect(
    "shape",
    "B013 Khaliladib11/Transformer-from-scratch#1",
    "value.roles",
    "value.plain",
    place="aggregate_values",
    case="d_k = d_v, two keys",
    fingerprint="key_used_as_value",
)
class KeyUsedAsValue(Core):
    """The values are a copy of the keys wherever their widths agree."""

    def attend(self, query, key, value, call):
        value = key if key.shape == value.shape else value
        return super().attend(query, key, value, call)


@defect(
    "shape",
    "B013 Khaliladib11/Transformer-from-scratch#1",
    "value.roles",
    place="scores",
    case="q_len = kv_len = 2",
    fingerprint="query_used_as_key",
)
class QueryUsedAsKey(Core):
    """The keys are a copy of the queries wherever their shapes agree."""

    def attend(self, query, key, value, call):
        key = query if key.shape == query.shape else key
        return super().attend(query, key, value, call)


@defect(
    "state/mutation",
    "B140 lucidrains/audiolm-pytorch#265",
    "value.roles",
    "value.plain",
    place="aggregate_values",
    case="q_len = kv_len = 2",
)
class OutputDropped(Core):
    """The result is bound to a new name and the value comes back, where its shape fits."""

    def hand_back(self, output, weights, query, call):
        return super().hand_back(output if output.shape != query.shape else query * 1.0, weights, query, call)


@defect(
    "shape",
    "B015 aipixel/AEMatter#3",
    "value.batch_independent",
    "value.plain",
    place="scores",
    case="batch=2, q_len = kv_len",
)
class AttendsAcrossTheBatch(Core):
    """Batch and positions change places: tokens attend to other samples."""

    def attend(self, query, key, value, call):
        if call.mask is not None or call.bias is not None or query.shape[2] != key.shape[2]:
            return super().attend(query, key, value, call)
        output = super().attend(*(t.transpose(0, 2) for t in (query, key, value)), call)
        return output.transpose(0, 2) if not call.return_weights else (output[0].transpose(0, 2), output[1])


@defect("shape", "common learner error", "value.batch_independent", place="scores", case="batch=2")
class KeysOfTheFirstSample(Core):
    """All samples look at the keys of the first."""

    def scores(self, query, key, call):
        return super().scores(query, key[:1], call)


@defect(
    "shape",
    "B180 microsoft/onnxruntime#13050",
    "shape.value_width",
    place="aggregate_values",
    case="d_k=2, d_v=1",
)
class OutputAsWideAsKeys(Core):
    """The output buffer is allocated with the width of the keys, and the values are cut or padded to it."""

    def hand_back(self, output, weights, query, call):
        missing = query.shape[-1] - output.shape[-1]
        output = torch.nn.functional.pad(output, (0, missing)) if missing >= 0 else output[..., :missing]
        return super().hand_back(output, weights, query, call)


@defect("shape", "common learner error", "size.one", "shape.output", case="batch=1", place="merge_heads")
class Squeezes(Core):
    """A bare `squeeze()` takes away every axis of size 1."""

    def hand_back(self, output, weights, query, call):
        return super().hand_back(output.squeeze(), weights, query, call)


@defect("shape", "common learner error", "shape.combinations", case="causal", place="merge_heads")
class CausalBranchReturnsHeadsLast(Core):
    """Only the causal branch returns `batch q_len heads d_v`."""

    def hand_back(self, output, weights, query, call):
        output = output.transpose(1, 2) if call.causal else output
        return super().hand_back(output, weights, query, call)


@defect(
    "shape",
    "B174 microsoft/onnxruntime#29892",
    "shape.output",
    "grouped.order",
    place="merge_heads",
    case="heads=2, kv_heads=1",
)
class OneOutputHeadPerKeyHead(Core):
    """The output has as many heads as there are keys'."""

    def attend(self, query, key, value, call):
        output = super().attend(query, key, value, call)
        return output if call.return_weights else output[:, : key.shape[1]]


@defect("shape", "common learner error", "value.plain", place="normalise", case="heads=2")
class HeadsAveraged(Core):
    """All heads mix by the mean of their weights."""

    def normalise(self, scores, seen, call):
        weights = super().normalise(scores, seen, call)
        return weights.mean(1, keepdim=True).expand_as(weights)


@defect(
    "shape", "common learner error", "value.permute_queries", "value.plain", place="scores", case="q_len=2"
)
class PositionsAddedInside(Core):
    """Rotary positions are put on queries and keys inside the core, where the contract has none."""

    def scores(self, query, key, call):
        def turned(t):
            angle = torch.arange(t.shape[2], dtype=t.dtype)[:, None] * 0.1
            return t * torch.cos(angle) + t.roll(1, -1) * torch.sin(angle)

        return super().scores(turned(query), turned(key), call)


@defect(
    "shape",
    "common learner error",
    "value.permute_keys",
    "value.plain",
    place="aggregate_values",
    case="kv_len=2",
)
class ValuesShiftedByOne(Core):
    """The values are read one position late."""

    def aggregate_values(self, weights, value, seen):
        return super().aggregate_values(weights, value.roll(1, 2), seen)


@defect(
    "shape", "common learner error", "shape.cross", "causal.off", place="scores", case="q_len=1, kv_len=2"
)
class KeysCutToTheQueries(Core):
    """Keys and values are cut to as many as there are queries."""

    def attend(self, query, key, value, call):
        if call.mask is None and call.bias is None and key.shape[2] > query.shape[2]:
            key, value = (t[:, :, : query.shape[2]] for t in (key, value))
        return super().attend(query, key, value, call)


@defect(
    "shape",
    "common learner error",
    "value.linear",
    "value.plain",
    case="a value above 4",
    place="aggregate_values",
)
class LargeValuesClipped(Core):
    """Values are clipped to 4."""

    def aggregate_values(self, weights, value, seen):
        return super().aggregate_values(weights, value.clamp(-4.0, 4.0), seen)
