"""Dtypes: of the output, of masks and constants, of half precision."""

import torch

from .bank import defect
from .reference import Core, wide


@defect("dtype", "common learner error", "dtype.output", case="bfloat16", place="aggregate_values")
class ReturnsFloat32(Core):
    """The output stays in float32."""

    def hand_back(self, output, weights, query, call):
        return super().hand_back(output.float(), weights, query, call)


@defect(
    "dtype", "common learner error", "dtype.output", "dtype.float64", case="float64", place="aggregate_values"
)
class ReturnsTheDefaultDtype(Core):
    """The output buffer has the default dtype."""

    def hand_back(self, output, weights, query, call):
        buffer = torch.zeros(output.shape)
        return super().hand_back(buffer + output.to(buffer.dtype), weights, query, call)


@defect(
    "dtype",
    "common learner error",
    "dtype.output",
    case="bfloat16",
    place="aggregate_values",
)
class EveryHalfIsFloat16(Core):
    """Both half precisions come back as float16."""

    def hand_back(self, output, weights, query, call):
        output = output.half() if output.dtype == torch.bfloat16 else output
        return super().hand_back(output, weights, query, call)


@defect(
    "dtype",
    "common learner error",
    "dtype.bfloat16",
    case="bfloat16, values of 1000",
    place="aggregate_values",
)
class Bfloat16ThroughFloat16(Core):
    """In bfloat16 the values pass through float16, which has fewer exponents."""

    def aggregate_values(self, weights, value, seen):
        return super().aggregate_values(
            weights.to(torch.float8_e5m2).to(weights.dtype) if value.dtype == torch.bfloat16 else weights,
            value,
            seen,
        )


@defect(
    "dtype",
    "B089 apple/axlearn#18",
    "dtype.float16",
    "dtype.long_rows",
    place="aggregate_values",
    case="float16, 17 keys",
)
class ValuesSummedInHalf(Core):
    """In half precision the values are added up one after the other in that precision."""

    def aggregate_values(self, weights, value, seen):
        if value.dtype not in (torch.bfloat16, torch.float16):
            return super().aggregate_values(weights, value, seen)
        half, output = weights.to(value.dtype), 0.0
        for j in range(value.shape[2]):
            output = output + half[..., j : j + 1] * value[:, :, j : j + 1]
        return output if value.shape[2] else super().aggregate_values(weights, value, seen)


@defect(
    "dtype",
    "B088 facebookresearch/fairseq#3575",
    "dtype.mask",
    place="mask_scores",
    case="float16 and a mask",
)
class FillDoesNotFitHalf(Core):
    """Scores in float16 are filled with -1e9, which float16 cannot hold."""

    def attend(self, query, key, value, call):
        call.notes["dtype"] = query.dtype
        return super().attend(query, key, value, call)

    def mask_scores(self, scores, seen, call):
        if call.mask is not None and call.notes["dtype"] == torch.float16:
            scores = scores.half().masked_fill(~seen, -1e9).to(scores.dtype)
        return super().mask_scores(scores, seen, call)


@defect(
    "dtype",
    "B087 NVIDIA-NeMo/Automodel#2658",
    "dtype.mask",
    place="mask_scores",
    case="bfloat16, causal and a mask",
)
class TwoLeastNumbersOverflow(Core):
    """Causal and mask planes each hold the least number; their sum is -inf minus the row's maximum: NaN."""

    def mask_scores(self, scores, seen, call):
        if call.mask is None or not call.causal:
            return super().mask_scores(scores, seen, call)
        least = torch.finfo(torch.bfloat16).min
        plane = self.visible_positions(*scores.shape[-2:], call)
        planes = torch.zeros_like(scores).masked_fill(~plane, least) + torch.zeros_like(scores).masked_fill(
            ~call.mask.expand_as(scores), least
        )
        return (scores + planes) - planes.amin(-1, keepdim=True).clamp_max(0.0) * 0.0


@defect(
    "dtype",
    "B187 pytorch/pytorch#191612",
    "dtype.mask",
    "dtype.combined",
    place="mask_scores",
    case="float16 and a mask",
)
class MaskIgnoredInHalf(Core):
    """In half precision the mask's bytes are not understood and it is left out."""

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask) if query.dtype in (torch.float16, torch.bfloat16) else mask


@defect("dtype", "B092 pytorch/pytorch#99012", "dtype.combined", place="add_bias", case="float64 and a bias")
class BiasThroughHalf(Core):
    """The bias is cast to bfloat16 outside float32."""

    def add_bias(self, scores, call):
        bias = call.bias if call.bias.dtype == torch.float32 else call.bias.to(torch.float8_e4m3fn)
        return scores + bias.to(scores.dtype)


@defect(
    "dtype", "common learner error", "dtype.float64", "dtype.float64_gradient", place="scores", case="float64"
)
class Float64ThroughFloat32(Core):
    """Everything is computed in float32."""

    def scores(self, query, key, call):
        return (query.float() @ key.float().mT).to(wide(query).dtype)


@defect("dtype", "common learner error", "dtype.float64", place="scale_scores", case="float64")
class ScaleIsAFloat32Tensor(Core):
    """The root of the width is a float32 number."""

    def scale_scores(self, scores, query, call):
        if call.scale is not None:
            return scores * call.scale
        return scores / float(torch.sqrt(torch.tensor(query.shape[-1], dtype=torch.float32)))


@defect("dtype", "common learner error", "dtype.float16", place="normalise", case="float16, long rows")
class WeightsFlushedInFloat16(Core):
    """In float16 weights below a thousandth are flushed to zero."""

    def normalise(self, scores, seen, call):
        weights = super().normalise(scores, seen, call)
        return weights.masked_fill(weights < 1e-3, 0.0) if call.notes["half"] else weights

    def attend(self, query, key, value, call):
        call.notes["half"] = query.dtype == torch.float16
        return super().attend(query, key, value, call)


@defect(
    "dtype", "B088 facebookresearch/fairseq#3575", "dtype.mask", place="mask_scores", case="bfloat16, a mask"
)
class MaskRaisesInHalf(Core):
    """`torch.where` meets two dtypes and raises, in half precision only."""

    def read_mask(self, mask, query, key, call):
        if query.dtype in (torch.float16, torch.bfloat16):
            raise RuntimeError("expected scalar type float but found c10::Half")
        return mask


@defect(
    "dtype",
    "common learner error",
    "dtype.long_rows",
    place="normalise",
    case="bfloat16, 600 equal scores",
)
class MeanInsteadOfMassInHalf(Core):
    """In half precision the denominator stops at 256, where the next integer is not representable."""

    def attend(self, query, key, value, call):
        call.notes["half"] = query.dtype in (torch.float16, torch.bfloat16)
        return super().attend(query, key, value, call)

    def normalise(self, scores, seen, call):
        weights = super().normalise(scores, seen, call)
        if not call.notes["half"] or scores.shape[-1] == 0:
            return weights
        top = scores.amax(-1, keepdim=True).clamp_min(-1e30)
        total = torch.exp(scores - top).sum(-1, keepdim=True)
        return weights * (total / total.clamp_max(256.0)).nan_to_num(1.0)
