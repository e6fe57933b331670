"""Right by the formula, wrong in floating point: overflow, half precision, blocks merged badly."""

import torch

from .bank import defect
from .reference import INF, Core, wide, zero_dead_rows


def _safe(tensor, amount=0.0):
    """Replace -inf, so that a difference of two of them is no NaN."""
    return tensor.masked_fill(tensor == -INF, amount)


@defect(
    "softmax-numerics",
    "common learner error",
    "value.large_logits",
    "value.low_logits",
    case="a score of 100",
    fingerprint="no_max_subtraction",
)
class NoMaximum(Core):
    """The maximum is not subtracted before the exponential."""

    def normalise(self, scores, seen, call):
        powers = torch.exp(scores)
        return powers / powers.sum(-1, keepdim=True).masked_fill(~seen.any(-1, keepdim=True), 1.0)


@defect("softmax-numerics", "common learner error", "value.wide_range", case="two rows 200 apart")
class MaximumOfTheWholeTensor(Core):
    """One maximum for all rows: a row far below it is lost."""

    def normalise(self, scores, seen, call):
        top = scores.detach().amax() if scores.numel() else 0.0
        powers = torch.exp(scores - _safe(torch.as_tensor(top)))
        return powers / powers.sum(-1, keepdim=True).masked_fill(~seen.any(-1, keepdim=True), 1.0)


@defect("softmax-numerics", "common learner error", "value.wide_range", case="two queries 200 apart")
class MaximumOverQueries(Core):
    """The maximum is taken along the wrong axis."""

    def normalise(self, scores, seen, call):
        top = scores.detach().amax(-2, keepdim=True) if scores.shape[-2] else 0.0
        powers = torch.exp(scores - _safe(torch.as_tensor(top)))
        return powers / powers.sum(-1, keepdim=True).masked_fill(~seen.any(-1, keepdim=True), 1.0)


@defect("softmax-numerics", "B079 flashinfer-ai/flashinfer#4267", "value.low_logits", case="scores of -1e5")
class RunningMaximumStartsFinite(Core):
    """The running maximum starts at -5e4: a row below it is zero."""

    def normalise(self, scores, seen, call):
        top = scores.detach().amax(-1, keepdim=True).clamp_min(-5e4) if scores.shape[-1] else 0.0
        powers = torch.exp(scores - top)
        total = powers.sum(-1, keepdim=True)
        return powers / total.masked_fill(total == 0, 1.0)


@defect("softmax-numerics", "common learner error", "value.low_logits", case="scores of -2e4")
class RunningMaximumStartsAtTenThousand(Core):
    """The running maximum starts at -1e4."""

    def normalise(self, scores, seen, call):
        top = scores.detach().amax(-1, keepdim=True).clamp_min(-1e4) if scores.shape[-1] else 0.0
        powers = torch.exp(scores - top)
        total = powers.sum(-1, keepdim=True)
        return powers / total.masked_fill(total == 0, 1.0)


@defect("softmax-numerics", "common learner error", "value.plain", "value.single_key", case="one key")
class EpsilonInTheSum(Core):
    """1e-6 is added to the sum of exponentials."""

    def normalise(self, scores, seen, call):
        top = _safe(scores.detach().amax(-1, keepdim=True)) if scores.shape[-1] else 0.0
        powers = torch.exp(scores - top)
        return powers / (powers.sum(-1, keepdim=True) + 1e-6)


@defect(
    "softmax-numerics",
    "common learner error",
    "value.wide_range",
    "value.large_logits",
    case="scores 60 and 80",
)
class ScoresClamped(Core):
    """Scores are clamped to 50 so that the exponential does not overflow."""

    def mask_scores(self, scores, seen, call):
        return super().mask_scores(scores.clamp(-50.0, 50.0), seen, call)


@defect("dtype", "seeded-defects.md", "value.plain", case="float32", fingerprint="scores_in_half")
class ScoresRoundedToHalf(Core):
    """Scores are stored in bfloat16 whatever comes in."""

    def scale_scores(self, scores, query, call):
        return super().scale_scores(scores, query, call).to(torch.bfloat16).to(scores.dtype)


@defect("dtype", "seeded-defects.md", "value.plain", case="float32", fingerprint="probabilities_in_half")
class ProbabilitiesRoundedToHalf(Core):
    """Weights are stored in float16 whatever comes in."""

    def normalise(self, scores, seen, call):
        return super().normalise(scores, seen, call).to(torch.float16).to(scores.dtype)


@defect("dtype", "seeded-defects.md", "value.plain", place="scores", case="float32, d_k=64")
class ProductsWithTenBits(Core):
    """Queries and keys lose all but ten bits before the product, as TF32 does."""

    def scores(self, query, key, call):
        def cut(t):
            bits = t.float().view(torch.int32) & ~0x1FFF
            return t + (bits.view(torch.float32).to(t.dtype) - t).detach()

        return super().scores(cut(query), cut(key), call)


@defect(
    "dtype",
    "B090 huggingface/transformers#48459",
    "dtype.float64",
    case="float64",
    fingerprint="float32_softmax",
)
class SoftmaxInFloat32(Core):
    """The softmax is hard-coded to float32 and caps float64."""

    def normalise(self, scores, seen, call):
        return super().normalise(scores.float(), seen, call).to(scores.dtype)


@defect("dtype", "B089 apple/axlearn#18", "dtype.long_rows", case="bfloat16, 600 equal scores")
class SumInHalfPrecision(Core):
    """The denominator is summed up in the input's dtype, one key after the other."""

    def attend(self, query, key, value, call):
        call.notes["dtype"] = query.dtype
        return super().attend(query, key, value, call)

    def normalise(self, scores, seen, call):
        dtype = call.notes["dtype"]
        if dtype not in (torch.bfloat16, torch.float16):
            return super().normalise(scores, seen, call)
        powers = torch.exp(
            scores - _safe(scores.detach().amax(-1, keepdim=True)) if scores.shape[-1] else scores
        )
        powers, total = powers.to(dtype), torch.zeros(scores.shape[:-1], dtype=dtype)
        for j in range(scores.shape[-1]):
            total = total + powers[..., j]
        return (powers / total[..., None].masked_fill(total[..., None] == 0, 1.0)).to(scores.dtype)


@defect(
    "softmax-numerics",
    "B085 huggingface/transformers#33317",
    "dtype.range",
    place="scores",
    case="float16, d_k=64, entries of 40",
)
class ProductOverflowsBeforeTheScale(Core):
    """The product is stored in float16 before it is scaled."""

    def scores(self, query, key, call):
        return super().scores(query, key, call).to(query.dtype).to(wide(query).dtype)


@defect("softmax-numerics", "common learner error", "value.plain", case="two keys")
class CheapExponential(Core):
    """The exponential is `(1 + x / 256) ** 256`."""

    def normalise(self, scores, seen, call):
        top = _safe(scores.detach().amax(-1, keepdim=True)) if scores.shape[-1] else 0.0
        powers = (1.0 + (scores - top).clamp_min(-256.0) / 256.0) ** 256
        powers = powers.masked_fill(~seen, 0.0)
        return powers / powers.sum(-1, keepdim=True).masked_fill(~seen.any(-1, keepdim=True), 1.0)


@defect("softmax-numerics", "common learner error", "value.plain", case="two keys")
class BaseTwoWithoutTheFactor(Core):
    """The softmax runs in base 2, and log2(e) was forgotten."""

    def normalise(self, scores, seen, call):
        return super().normalise(scores * 0.6931471805599453, seen, call)


class Blockwise(Core):
    """Online softmax over blocks of keys, right until a defect replaces `join`."""

    size = 16

    def start(self, scores):
        """Return the empty state: maximum, sum."""
        return torch.full_like(scores[..., :1], -INF), torch.zeros_like(scores[..., :1])

    def join(self, top, new):
        """Return the factor on what was summed up before."""
        return torch.exp(top - _safe(new))

    def normalise(self, scores, seen, call):
        if scores.shape[-1] == 0:
            return scores
        top, total = self.start(scores)
        parts = []
        for block in scores.split(self.size, -1):
            new = torch.maximum(top, block.detach().amax(-1, keepdim=True))
            keep = self.join(top, new)
            powers = torch.exp(block - _safe(new))
            parts = [part * keep for part in parts] + [powers]
            total, top = total * keep + powers.sum(-1, keepdim=True), new
        return torch.cat(parts, -1) / total.masked_fill(total == 0, 1.0)


@defect("softmax-numerics", "common learner error", "size.blocks", case="kv_len=17, block 16")
class BlocksAreNotRescaled(Blockwise):
    """What earlier blocks gave is not rescaled when the maximum moves."""

    def join(self, top, new):
        return torch.where(top == -INF, torch.zeros_like(top), torch.ones_like(top))


@defect(
    "softmax-numerics",
    "B083 pytorch/pytorch#127055",
    "size.blocks",
    "mask.value",
    place="normalise",
    case="first block fully masked",
)
class FirstBlockMaskedGivesNaN(Blockwise):
    """A first block without visible keys leaves -inf - -inf behind."""

    def join(self, top, new):
        return torch.exp(top - new)


@defect(
    "softmax-numerics",
    "B081 flashinfer-ai/flashinfer#4051",
    "mask.value",
    "mask.dead_row.zero",
    case="half of the keys hidden",
)
class EmptyHalvesGiveNaN(Core):
    """Two halves of the keys are merged by log-sum-exp; an empty half is NaN."""

    def normalise(self, scores, seen, call):
        half = scores.shape[-1] // 2
        if half == 0:
            return super().normalise(scores, seen, call)
        parts = (scores[..., :half], scores[..., half:])
        sums = [part.logsumexp(-1, keepdim=True) for part in parts]
        whole = torch.logaddexp(*sums)
        return torch.cat(
            [part.softmax(-1) * torch.exp(s - whole) for part, s in zip(parts, sums, strict=True)], -1
        )


@defect(
    "softmax-numerics",
    "B081 flashinfer-ai/flashinfer#4051",
    "value.plain",
    "value.uniform",
    case="two halves",
)
class HalvesMergedEqually(Core):
    """Two halves of the keys are averaged instead of weighted by their sums."""

    def normalise(self, scores, seen, call):
        half = scores.shape[-1] // 2
        if half == 0:
            return super().normalise(scores, seen, call)
        first, second = zero_dead_rows(scores[..., :half]), zero_dead_rows(scores[..., half:])
        shares = seen[..., :half].any(-1, keepdim=True), seen[..., half:].any(-1, keepdim=True)
        count = (shares[0].float() + shares[1].float()).clamp_min(1.0)
        return torch.cat([first, second], -1) / count


@defect(
    "softmax-numerics", "common learner error", "value.constant", "value.hull", case="bfloat16-like drift"
)
class ReciprocalInHalf(Core):
    """The reciprocal of the sum is rounded to bfloat16."""

    def normalise(self, scores, seen, call):
        top = _safe(scores.detach().amax(-1, keepdim=True)) if scores.shape[-1] else 0.0
        powers = torch.exp(scores - top)
        total = powers.sum(-1, keepdim=True).masked_fill(~seen.any(-1, keepdim=True), 1.0)
        return powers * (1.0 / total).to(torch.bfloat16).to(powers.dtype)


@defect("softmax-numerics", "common learner error", "value.low_logits", case="scores of -1e5")
class LowScoresAreTakenForMasked(Core):
    """A score below -1e4 counts as masked."""

    def mask_scores(self, scores, seen, call):
        return super().mask_scores(scores, seen & (scores > -1e4), call)


@defect(
    "dtype",
    "common learner error",
    "dtype.bfloat16",
    "dtype.float16",
    precision="fused",
    case="bfloat16",
    place="scale_scores",
)
class SaysFusedAndIsNot(Core):
    """Declares that scores stay in float32, and stores them in the input's dtype."""

    def scale_scores(self, scores, query, call):
        return super().scale_scores(scores, query, call).to(query.dtype).to(scores.dtype)
