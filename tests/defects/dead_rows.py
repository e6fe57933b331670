"""What becomes of a query that may attend to nothing."""

import torch

from .bank import defect
from .reference import INF, Core, wide, zero_dead_rows


@defect(
    "mask",
    "B018 pytorch/pytorch#103963",
    "mask.dead_row.zero",
    "causal.dead_row",
    case="one dead row",
    fingerprint="dead_row_nan",
)
class DeadRowsGiveNaN(Core):
    """A row of -inf goes through a plain softmax."""

    def normalise(self, scores, seen, call):
        return scores.softmax(-1)


@defect(
    "mask",
    "B019 ml-explore/mlx#2395",
    "mask.dead_row.zero",
    "causal.dead_row",
    "size.empty_key",
    case="one dead row",
    fingerprint="dead_row_mean",
)
class DeadRowsGiveTheMean(Core):
    """A row without keys spreads its weight over all of them; without any key the output is one."""

    def normalise(self, scores, seen, call):
        alive = seen.any(-1, keepdim=True)
        return torch.where(alive, zero_dead_rows(scores), torch.ones_like(scores) / max(scores.shape[-1], 1))

    def aggregate_values(self, weights, value, seen):
        return weights @ wide(value) if value.shape[2] else weights @ wide(value) + 1.0


@defect("mask", "B178 pytorch/pytorch#159973", "mask.dead_row.zero", case="a causal mask and a dead row")
class DeadRowsSeeThePast(Core):
    """A row that the mask leaves nothing falls back to the causal rule alone."""

    def visible(self, query, key, call):
        seen = super().visible(query, key, call)
        alone = self.visible_positions(query.shape[2], key.shape[2], call)
        return seen if alone is None else seen | (alone & ~seen.any(-1, keepdim=True))


@defect("mask", "B018 pytorch/pytorch#103963", "mask.dead_row.zero", case="some rows dead, not all")
class OnlyWhollyDeadIsHandled(Core):
    """Zeros are returned when nothing at all is visible; single dead rows are NaN."""

    def normalise(self, scores, seen, call):
        return scores.softmax(-1) if bool(seen.any()) else torch.zeros_like(scores)


@defect("mask", "B025 pytorch/pytorch#63271", "mask.dead_row.neighbours", case="one of two rows dead")
class DeadRowSilencesTheSample(Core):
    """One dead row zeroes every row of its head."""

    def normalise(self, scores, seen, call):
        dead = ~seen.any(-1, keepdim=True)
        return zero_dead_rows(scores).masked_fill(dead.any(-2, keepdim=True), 0.0)


@defect(
    "mask",
    "common learner error",
    "mask.dead_row.neighbours",
    "mask.dead_row.gradient",
    case="one of two rows dead",
)
class DeadRowSpoilsTheBatch(Core):
    """The maximum over all rows meets the NaN of a dead one."""

    def normalise(self, scores, seen, call):
        weights = scores.softmax(-1)
        return weights / weights.sum(-1, keepdim=True).amax() if weights.numel() else weights


@defect("gradient", "B098 Xilinx/brevitas#1591", "mask.dead_row.gradient", case="one dead row, backward")
class NaNHiddenAfterTheSoftmax(Core):
    """NaN weights are replaced after the softmax: the output is right, gradients are NaN."""

    def mask_scores(self, scores, seen, call):
        return scores + torch.zeros_like(scores).masked_fill(~seen, -INF)

    def normalise(self, scores, seen, call):
        return torch.where(seen.any(-1, keepdim=True), scores.softmax(-1), torch.zeros_like(scores))


@defect(
    "mask",
    "common learner error",
    "value.nan_visible",
    case="a NaN value that is visible",
    place="aggregate_values",
)
class NaNsVanish(Core):
    """`nan_to_num` on the output hides every NaN."""

    def aggregate_values(self, weights, value, seen):
        return (weights @ wide(value)).nan_to_num()


@defect("mask", "B098 Xilinx/brevitas#1591", "mask.dead_row.gradient", case="one dead row, backward")
class DeadRowsAreTrained(Core):
    """A dead row's output is multiplied by zero, its scores still get a gradient through the value path."""

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores)
        dead = ~seen.any(-1, keepdim=True)
        leak = (call.notes["raw"] * dead).sum(-1, keepdim=True)
        return weights + (leak - leak.detach())

    def mask_scores(self, scores, seen, call):
        call.notes["raw"] = scores
        return super().mask_scores(scores, seen, call)


@defect(
    "mask", "B022 pytorch/pytorch#160064", "state.grad_mode", "mask.dead_row.zero", case="dead row, no_grad"
)
class FastPathHasNoSafeSoftmax(Core):
    """Without grad a fast path runs whose softmax gives NaN on dead rows."""

    def normalise(self, scores, seen, call):
        recording = torch.is_grad_enabled() and scores.requires_grad
        return zero_dead_rows(scores) if recording else scores.softmax(-1)


@defect(
    "mask", "B022 pytorch/pytorch#160064", "state.weights_flag", "weights.dead_row", case="dead row, weights"
)
class WeightsPathHasNoSafeSoftmax(Core):
    """Asked for weights, the softmax gives NaN on dead rows."""

    def normalise(self, scores, seen, call):
        return scores.softmax(-1) if call.return_weights else zero_dead_rows(scores)


@defect("mask", "common learner error", "mask.dead_row.zero", case="one key, hidden")
class SingleKeyIsAlwaysSeen(Core):
    """With one key the softmax is skipped: the weight is 1, mask or not."""

    def normalise(self, scores, seen, call):
        return torch.ones_like(scores) if scores.shape[-1] == 1 else zero_dead_rows(scores)
