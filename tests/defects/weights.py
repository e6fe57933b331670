"""The weights that are handed back: averaged, too early, of other rows, or not there."""

import torch

from .bank import defect
from .reference import Core


class _Hands(Core):
    """Hands back other weights than those that were used."""

    def other(self, weights, call):
        """Return what is handed back."""
        raise NotImplementedError

    def hand_back(self, output, weights, query, call):
        return super().hand_back(output, self.other(weights, call), query, call)


@defect("error-handling", "common learner error", "weights.shape", case="heads=2, weights")
class WeightsAveraged(_Hands):
    """Weights are averaged over heads."""

    def other(self, weights, call):
        return weights.mean(1)


@defect("error-handling", "common learner error", "weights.value", "weights.rows", case="weights")
class WeightsAreScores(_Hands):
    """Scores come back, from before the softmax."""

    def normalise(self, scores, seen, call):
        call.notes["scores"] = scores.masked_fill(~seen, 0.0)
        return super().normalise(scores, seen, call)

    def other(self, weights, call):
        return call.notes["scores"].to(weights.dtype)


@defect(
    "error-handling",
    "common learner error",
    "weights.shape",
    "weights.value",
    case="q_len != kv_len, weights",
)
class WeightsComeTransposed(_Hands):
    """Weights come back as `kv_len q_len`."""

    def other(self, weights, call):
        return weights.mT


@defect("error-handling", "common learner error", "weights.shape", case="two queries, weights")
class WeightsOfTheLastQuery(_Hands):
    """Only the last query's weights come back."""

    def other(self, weights, call):
        return weights[:, :, -1:]


@defect("error-handling", "B173 keras-team/keras-hub#2213", "weights.shape", case="weights")
class WeightsAreNone(_Hands):
    """Asked for weights, the core gives None."""

    def other(self, weights, call):
        return None


@defect(
    "error-handling",
    "B057 huggingface/transformers#30652",
    "weights.forbidden",
    "weights.value",
    "weights.explain_output",
    case="a mask, weights",
)
class WeightsWithoutTheMask(_Hands):
    """The weights that come back are computed again, without the mask."""

    def mask_scores(self, scores, seen, call):
        call.notes["raw"] = scores
        return super().mask_scores(scores, seen, call)

    def other(self, weights, call):
        return call.notes["raw"].softmax(-1).to(weights.dtype)


@defect("error-handling", "B018 pytorch/pytorch#103963", "weights.dead_row", case="a dead row, weights")
class DeadRowsHaveWeights(_Hands):
    """The output of a dead row is zero, its weights come back as uniform."""

    def mask_scores(self, scores, seen, call):
        call.notes["dead"] = ~seen.any(-1, keepdim=True)
        return super().mask_scores(scores, seen, call)

    def other(self, weights, call):
        return torch.where(call.notes["dead"], torch.ones_like(weights) / max(weights.shape[-1], 1), weights)


@defect(
    "error-handling",
    "common learner error",
    "weights.value",
    "weights.explain_output",
    case="heads=2, weights",
)
class WeightsOfTheNextHead(_Hands):
    """Weights come back one head off."""

    def other(self, weights, call):
        return weights.roll(1, 1)


@defect("error-handling", "common learner error", "weights.rows", case="weights")
class WeightsUnnormalised(_Hands):
    """Weights come back as exponentials, the sum is divided out of the output later."""

    def other(self, weights, call):
        return weights / weights.amax(-1, keepdim=True).clamp_min(1e-9) if weights.shape[-1] else weights


@defect("error-handling", "common learner error", "weights.forbidden", case="a mask, weights")
class HiddenWeightsAreNaN(_Hands):
    """Weights of hidden keys come back as NaN, as a picture wants them."""

    def mask_scores(self, scores, seen, call):
        call.notes["seen"] = seen
        return super().mask_scores(scores, seen, call)

    def other(self, weights, call):
        return weights.masked_fill(~call.notes["seen"], float("nan"))


@defect(
    "error-handling", "common learner error", "state.weights_flag", case="weights", place="aggregate_values"
)
class WeightsPathRounds(Core):
    """Asked for weights, the output is computed from weights rounded to bfloat16."""

    def drop_weights(self, weights, call):
        weights = super().drop_weights(weights, call)
        return weights.to(torch.bfloat16).to(weights.dtype) if call.return_weights else weights
