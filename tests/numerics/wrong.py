"""Known defects, to see how small a mistake the bound still shows."""

import torch
from torch import Tensor

from attnspec._inputs import CoreInputs
from right import finish, naive_post, shared


def last_key_dropped(inputs: CoreInputs) -> Tensor:
    """Forget the last key."""
    seen = torch.ones(1, 1, inputs.query.shape[2], inputs.key.shape[2], dtype=torch.bool)
    seen[..., -1] = False
    return naive_post(inputs.replace(mask=seen))


def softmax_in_bfloat16(inputs: CoreInputs) -> Tensor:
    """Round the weights to bfloat16, whatever the input's dtype."""
    scores, alive = finish(inputs, (inputs.query @ shared(inputs)[0].mT) * inputs.factor)
    weights = torch.softmax(scores.to(torch.bfloat16), -1).to(scores.dtype)
    return (weights @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def scores_in_bfloat16(inputs: CoreInputs) -> Tensor:
    """Round the scores to bfloat16, and nothing else."""
    scores, alive = finish(inputs, (inputs.query.float() @ shared(inputs)[0].float().mT) * inputs.factor)
    weights = torch.softmax(scores.to(torch.bfloat16).float(), -1)
    return (weights @ shared(inputs)[1].float()).masked_fill(~alive, 0.0).to(inputs.query.dtype)


def running_sum_in_bfloat16(inputs: CoreInputs) -> Tensor:
    """Hold the sum over keys in bfloat16."""
    scores, _ = finish(inputs, (inputs.query.float() @ shared(inputs)[0].float().mT) * inputs.factor)
    weights, value = torch.softmax(scores, -1), shared(inputs)[1].float()
    total = torch.zeros(*weights.shape[:-1], value.shape[-1], dtype=torch.bfloat16)
    for j in range(weights.shape[-1]):
        total = total + (weights[..., j : j + 1] * value[..., j : j + 1, :]).to(torch.bfloat16)
    return total.to(inputs.query.dtype)


def scale_off_by_one_percent(inputs: CoreInputs) -> Tensor:
    """Take 1.01 times the scale."""
    return naive_post(inputs.replace(scale=inputs.factor * 1.01))


def mean_in_dead_rows(inputs: CoreInputs) -> Tensor:
    """Let a query that may see nothing see everything."""
    out, value = naive_post(inputs), shared(inputs)[1]
    dead = ~torch.as_tensor(inputs.mask).any(-1, keepdim=True)
    return torch.where(dead, value.mean(-2, keepdim=True), out)


class _Backward(torch.autograd.Function):
    """The identity, with something else done to the gradient."""

    @staticmethod
    def forward(ctx, tensor, change):  # type: ignore[no-untyped-def]
        ctx.change = change
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return ctx.change(gradient), None


def gradient_without_mean(inputs: CoreInputs) -> Tensor:
    """Hold the softmax's denominator constant in the backward pass."""
    scores, alive = finish(inputs, (inputs.query @ shared(inputs)[0].mT) * inputs.factor)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    weights = powers / powers.sum(-1, keepdim=True).detach()
    return (weights @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def gradient_scaled_wrongly(inputs: CoreInputs) -> Tensor:
    """Make the gradient of the scores 1 % too large."""
    scores = _Backward.apply((inputs.query @ shared(inputs)[0].mT) * inputs.factor, lambda g: g * 1.01)
    scores, alive = finish(inputs, scores)
    return (torch.softmax(scores, -1) @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def gradient_in_bfloat16(inputs: CoreInputs) -> Tensor:
    """Round the gradient of the scores to bfloat16, whatever the input's dtype."""
    scores = (inputs.query @ shared(inputs)[0].mT) * inputs.factor
    scores = _Backward.apply(scores, lambda g: g.to(torch.bfloat16).to(g.dtype))
    scores, alive = finish(inputs, scores)
    return (torch.softmax(scores, -1) @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def gradient_of_last_key_dropped(inputs: CoreInputs) -> Tensor:
    """Let no gradient reach the last key."""
    scores = _Backward.apply((inputs.query @ shared(inputs)[0].mT) * inputs.factor, _without_last)
    scores, alive = finish(inputs, scores)
    return (torch.softmax(scores, -1) @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def _without_last(gradient: Tensor) -> Tensor:
    return torch.cat((gradient[..., :-1], torch.zeros_like(gradient[..., -1:])), -1)


FORWARD = {
    f.__name__: f
    for f in (
        last_key_dropped, softmax_in_bfloat16, scores_in_bfloat16, running_sum_in_bfloat16,
        scale_off_by_one_percent, mean_in_dead_rows,
    )
}  # fmt: skip
BACKWARD = {
    f.__name__: f
    for f in (
        gradient_without_mean,
        gradient_scaled_wrongly,
        gradient_in_bfloat16,
        gradient_of_last_key_dropped,
    )
}
