"""Softmax over another axis, or no softmax at all."""

import torch

from .bank import defect
from .reference import INF, Core, zero_dead_rows


@defect(
    "shape",
    "B010 FudanNLP/fastNLP#254",
    "value.single_key",
    "value.uniform",
    case="q_len=2, kv_len=1",
    fingerprint="softmax_over_queries",
)
class SoftmaxOverQueries(Core):
    """The softmax runs over queries."""

    def normalise(self, scores, seen, call):
        return zero_dead_rows(scores.mT).mT


@defect(
    "shape",
    "B009 facebookresearch/detr#247",
    "value.single_key",
    "value.permute_heads",
    "value.uniform",
    case="heads=2, kv_len=1",
    fingerprint="softmax_over_heads",
)
class SoftmaxOverHeads(Core):
    """The softmax runs over heads."""

    def normalise(self, scores, seen, call):
        return zero_dead_rows(scores.transpose(1, -1)).transpose(1, -1)


@defect(
    "shape",
    "B007 PetrochukM/PyTorch-NLP#2",
    "value.single_key",
    "value.batch_independent",
    case="batch=2, kv_len=1",
    fingerprint="softmax_over_batch",
)
class SoftmaxOverTheBatch(Core):
    """The softmax runs over the flattened batch axis."""

    def normalise(self, scores, seen, call):
        flat = scores.flatten(0, 2)
        return zero_dead_rows(flat.mT).mT.view_as(scores)


@defect(
    "shape",
    "B009 facebookresearch/detr#247",
    "value.single_key",
    "value.constant",
    case="heads=2, kv_len=1",
    fingerprint="softmax_over_heads_and_keys",
)
class SoftmaxOverHeadsAndKeys(Core):
    """All heads of a query share one unit of probability."""

    def normalise(self, scores, seen, call):
        joint = scores.transpose(1, 2)
        return zero_dead_rows(joint.flatten(2)).view_as(joint).transpose(1, 2)


@defect(
    "shape",
    "B016 pyg-team/pytorch_geometric#224",
    "value.single_key",
    "value.constant",
    case="q_len=2, kv_len=1",
)
class SoftmaxOverQueriesAndKeys(Core):
    """The whole score matrix of a head shares one unit of probability."""

    def normalise(self, scores, seen, call):
        return zero_dead_rows(scores.flatten(2)).view_as(scores)


@defect("shape", "B010 FudanNLP/fastNLP#254", "value.plain", case="q_len = kv_len = 2")
class SoftmaxOverQueriesWhenSquare(Core):
    """The softmax axis is chosen by its size, and the queries' comes first."""

    def normalise(self, scores, seen, call):
        axis = list(scores.shape).index(scores.shape[-1])
        moved = scores.transpose(axis, -1)
        return zero_dead_rows(moved).transpose(axis, -1)


@defect(
    "shape",
    "common learner error",
    "value.plain",
    "value.roles",
    case="two queries, two keys",
    place="aggregate_values",
    fingerprint="weights_transposed",
)
class WeightsTransposed(Core):
    """The weights are transposed before they meet the values, where that fits."""

    def aggregate_values(self, weights, value, seen):
        square = weights.shape[-1] == weights.shape[-2]
        return super().aggregate_values(weights.mT if square else weights, value, seen.mT if square else seen)


@defect("shape", "common learner error", "value.constant", "value.hull", case="two keys")
class NoSoftmax(Core):
    """Scores are used as weights as they are."""

    def normalise(self, scores, seen, call):
        return scores.masked_fill(~seen, 0.0)


@defect("shape", "common learner error", "value.constant", "value.hull", case="two keys")
class SumsToOneWithoutExp(Core):
    """Scores are divided by their sum."""

    def normalise(self, scores, seen, call):
        scores = scores.masked_fill(~seen, 0.0)
        return scores / scores.sum(-1, keepdim=True)


@defect("shape", "common learner error", "value.constant", "value.single_key", case="one key")
class SigmoidForSoftmax(Core):
    """Every key is weighted by itself."""

    def normalise(self, scores, seen, call):
        return torch.sigmoid(scores)


@defect(
    "window/softcap/bias",
    "B204 huggingface/transformers#41083",
    "value.constant",
    "value.single_key",
    "value.shift",
    case="one key, score 0: weight 1/2",
)
class SinkInTheDenominator(Core):
    """The denominator is one plus the sum."""

    def normalise(self, scores, seen, call):
        top = scores.amax(-1, keepdim=True).clamp_min(0.0).detach() if scores.shape[-1] else 0.0
        powers = torch.exp(scores - top)
        return powers / (powers.sum(-1, keepdim=True) + torch.exp(-torch.as_tensor(top)))


@defect("shape", "common learner error", "value.plain", case="two keys")
class SoftmaxTwice(Core):
    """The softmax is applied to weights again."""

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores)
        return zero_dead_rows(weights.masked_fill(~seen, -INF))


@defect("shape", "common learner error", "value.plain", case="two keys")
class Softmin(Core):
    """The sign of the exponent is lost."""

    def normalise(self, scores, seen, call):
        return zero_dead_rows((-scores).masked_fill(~seen, -INF))


@defect("shape", "common learner error", "value.plain", case="a key with a small weight")
class SmallWeightsDropped(Core):
    """Weights below one per cent are set to zero, and the rest is not normalised again."""

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores)
        return weights.masked_fill(weights < 0.01, 0.0)


@defect("shape", "common learner error", "value.plain", case="nine keys")
class OnlyTheTopKeys(Core):
    """Only the four largest scores take part."""

    def normalise(self, scores, seen, call):
        if scores.shape[-1] <= 4:
            return zero_dead_rows(scores)
        least = scores.topk(4, -1).values[..., -1:]
        return zero_dead_rows(scores.masked_fill(scores < least, -INF))
