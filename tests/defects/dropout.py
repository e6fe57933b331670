"""Dropout on the weights: at the wrong rate, in the wrong place, at the wrong time."""

import torch
from torch import nn

from .bank import defect
from .reference import INF, Core, zero_dead_rows


def _keep(shape, rate):
    return torch.rand(shape) >= rate


@defect("dropout", "B133 common learner error", "dropout.survivors", case="one key, p=1/2")
class SurvivorsNotRescaled(Core):
    """Kept weights are not divided by `1 - p`."""

    def drop_weights(self, weights, call):
        return weights * _keep(weights.shape, call.dropout) if call.dropout else weights


@defect("dropout", "common learner error", "dropout.on_weights", place="drop_weights", case="p=1/4")
class DropoutOnTheOutput(Core):
    """The output is dropped, not the weights."""

    def drop_weights(self, weights, call):
        return weights

    def hand_back(self, output, weights, query, call):
        output = nn.functional.dropout(output, call.dropout) if call.dropout else output
        return super().hand_back(output, weights, query, call)


@defect("dropout", "common learner error", "dropout.survivors", case="p=1/2")
class DropoutOnTheScores(Core):
    """Scores are dropped before the softmax: survivors share the weight among them."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        kept = weights * _keep(weights.shape, call.dropout)
        return kept / kept.sum(-1, keepdim=True).clamp_min(1e-9)


@defect("dropout", "common learner error", "dropout.survivors", case="p=1/4")
class RateIsTheKeepRate(Core):
    """`dropout` is read as the probability of keeping."""

    def drop_weights(self, weights, call):
        return nn.functional.dropout(weights, 1.0 - call.dropout) if call.dropout else weights


@defect("dropout", "common learner error", "dropout.survivors", case="p=1/2")
class RescaledByTheRate(Core):
    """Survivors are divided by `p`, not by `1 - p`."""

    def drop_weights(self, weights, call):
        return weights * _keep(weights.shape, call.dropout) / call.dropout if call.dropout else weights


@defect("dropout", "B130 zhouhaoyi/Informer2020#97", "dropout.survivors", "dropout.random", case="p=1/2")
class DropoutNeverApplied(Core):
    """Dropout is accepted and not used."""

    def drop_weights(self, weights, call):
        return weights


@defect("dropout", "common learner error", "dropout.per_element", case="heads=2, p=1/2")
class HeadsDropTogether(Core):
    """All heads drop the same weights."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        return weights * _keep(weights[:, :1].shape, call.dropout) / (1 - call.dropout)


@defect("dropout", "common learner error", "dropout.per_element", case="batch=2, p=1/2")
class SamplesDropTogether(Core):
    """All samples drop the same weights."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        return weights * _keep(weights[:1].shape, call.dropout) / (1 - call.dropout)


@defect("dropout", "common learner error", "dropout.per_element", case="two queries, p=1/2")
class KeysDropForAllQueries(Core):
    """A key is dropped for all queries at once."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        return weights * _keep(weights[:, :, :1].shape, call.dropout) / (1 - call.dropout)


@defect("dropout", "common learner error", "dropout.random", case="two seeds")
class DropoutSeededInside(Core):
    """The same generator with the same seed at every call."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0))
        return weights * (drawn >= call.dropout) / (1 - call.dropout)


@defect("dropout", "common learner error", "dropout.random", case="one seed twice")
class DropoutFromItsOwnGenerator(Core):
    """A generator of its own: `torch.manual_seed` does not reach it."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        drawn = torch.rand(weights.shape, generator=self.generator)
        return weights * (drawn >= call.dropout) / (1 - call.dropout)


@defect("dropout", "B129 pytorch/pytorch#42929", "dropout.weights_before", case="one key, p=1/2, weights")
class WeightsAfterDropout(Core):
    """The returned weights are the dropped ones."""

    def drop_weights(self, weights, call):
        call.notes["dropped"] = super().drop_weights(weights, call)
        return call.notes["dropped"]

    def hand_back(self, output, weights, query, call):
        return super().hand_back(output, call.notes["dropped"].to(query.dtype), query, call)


class _DropsAnew(torch.autograd.Function):
    """Draws one mask forward and another backward."""

    @staticmethod
    def forward(ctx, weights, rate):
        ctx.rate = rate
        return nn.functional.dropout(weights, rate)

    @staticmethod
    def backward(ctx, grad):
        return nn.functional.dropout(grad, ctx.rate), None


@defect("dropout", "B127 pytorch/pytorch#190717", "dropout.gradient", case="two keys, p=1/2, backward")
class BackwardDropsAnew(Core):
    """The value's gradient uses another dropout mask than the output did."""

    def aggregate_values(self, weights, value, seen):
        mixed = super().aggregate_values(weights.detach(), value, seen)
        kept = (weights == 0).any()
        if not bool(kept) or not value.requires_grad:
            return super().aggregate_values(weights, value, seen)
        other = super().aggregate_values(_DropsAnew.apply(weights, 0.5), value, seen)
        return mixed.detach() + other - other.detach()


@defect(
    "dropout", "B128 pytorch/pytorch#124464", "determinism.repeat", "determinism.no_random", case="no dropout"
)
class DropsByDefault(Core):
    """A rate of a tenth is applied when none is given."""

    def drop_weights(self, weights, call):
        return nn.functional.dropout(weights, call.dropout or 0.1)


@defect("dropout", "common learner error", "determinism.no_random", case="no dropout")
class DrawsWithoutNeed(Core):
    """The random mask is drawn before the rate is looked at."""

    def drop_weights(self, weights, call):
        kept = _keep(weights.shape, call.dropout)
        return weights * kept / (1 - call.dropout)


@defect("dropout", "common learner error", "dropout.survivors", place="mask_scores", case="a mask, p=1/2")
class DropoutRevivesHiddenKeys(Core):
    """With dropout on, scores are dropped to 0 rather than weights: a hidden key comes back."""

    def normalise(self, scores, seen, call):
        if not call.dropout:
            return super().normalise(scores, seen, call)
        kept = _keep(scores.shape, call.dropout)
        return zero_dead_rows(scores.masked_fill(~kept & (scores != -INF), 0.0)) / (1 - call.dropout) * kept

    def drop_weights(self, weights, call):
        return weights
