"""Cores with a softcap, a bias, a window or a scale of their own: right ones, and wrong ones by line."""

import math

import torch

CAP, SCALE, WINDOW = 2.0, 0.3, (2, 1)


def _masked(scores, mask):
    return scores.masked_fill(~mask, -torch.inf)


class RightCapThenMask:
    softcap = CAP

    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = CAP * torch.tanh(scores / CAP)
        return _masked(scores, mask).softmax(-1) @ value


class RightEverything:
    softcap = CAP
    scale = SCALE
    bias = True

    def __call__(self, query, key, value, mask, bias):
        scores = torch.einsum("bhid,bhjd->bhij", query * SCALE, key)
        scores = torch.tanh(scores / CAP).mul(CAP).add(bias)
        return _masked(scores, mask).softmax(-1) @ value


class RightWindow:
    window = WINDOW

    def __call__(self, query, key, value, mask):
        n = query.shape[-2]
        near = torch.ones(n, n, dtype=torch.bool).triu(-WINDOW[0]).tril(WINDOW[1])
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return _masked(scores, mask & near).softmax(-1) @ value


class RightScaleZero:
    scale = 0.0
    bias = True

    def __call__(self, query, key, value, mask, bias):
        return _masked(query @ key.mT * 0.0 + bias, mask).softmax(-1) @ value


class CapForgotten:
    softcap = CAP

    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return _masked(scores, mask).softmax(-1) @ value  # departs: cap_scores


class CapNotMultipliedBack:
    softcap = CAP

    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = torch.tanh(scores / CAP)
        scores = _masked(scores, mask)  # departs: cap_scores
        return scores.softmax(-1) @ value


class CapIsAClamp:
    softcap = CAP

    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.clamp(-CAP / 4, CAP / 4)  # departs: cap_scores
        return _masked(scores, mask).softmax(-1) @ value


class CapAfterTheBias:
    softcap = CAP
    bias = True

    def __call__(self, query, key, value, mask, bias):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = CAP * torch.tanh((scores + bias) / CAP)  # departs: cap_scores
        return _masked(scores, mask).softmax(-1) @ value


class CapAfterTheMask:
    softcap = CAP

    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~mask, -1e9)
        scores = CAP * torch.tanh(scores / CAP)  # departs: cap_scores
        return scores.softmax(-1) @ value


class BiasForgotten:
    bias = True

    def __call__(self, query, key, value, mask, bias):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return _masked(scores, mask).softmax(-1) @ value  # departs: add_bias


class BiasSubtracted:
    bias = True

    def __call__(self, query, key, value, mask, bias):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores - bias  # departs: add_bias
        return _masked(scores, mask).softmax(-1) @ value


class BiasBeforeTheScale:
    bias = True

    def __call__(self, query, key, value, mask, bias):
        scores = query @ key.mT
        scores = (scores + bias) / math.sqrt(query.shape[-1])  # departs: scale_scores
        return _masked(scores, mask).softmax(-1) @ value


class WindowForgotten:
    window = WINDOW

    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~mask, -torch.inf)  # departs: mask_scores
        return scores.softmax(-1) @ value


class WindowOneShort:
    window = WINDOW

    def __call__(self, query, key, value, mask):
        n = query.shape[-2]
        near = torch.ones(n, n, dtype=torch.bool).triu(1 - WINDOW[0]).tril(WINDOW[1])
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~(mask & near), -torch.inf)  # departs: mask_scores
        return scores.softmax(-1) @ value


class GivenScaleIgnored:
    scale = SCALE

    def __call__(self, query, key, value, mask):
        scores = query @ key.mT
        scores = scores / math.sqrt(query.shape[-1])  # departs: scale_scores
        return _masked(scores, mask).softmax(-1) @ value


class KeysLeftOut:
    def __call__(self, query, key, value, mask):
        key, value = key[:, :, 1:], value[:, :, 1:]  # departs: scores
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return _masked(scores, mask[..., 1:]).softmax(-1) @ value


class HeadsBehindPositions:
    def __call__(self, query, key, value, mask):
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        scores = query @ key.mT / math.sqrt(query.shape[-1])  # departs: heads_first
        return (scores.softmax(-1) @ value).transpose(1, 2)


class ScoresForWeights:
    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(~mask, 0.0) @ value  # departs: normalise


class AnotherResult:
    def __call__(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        mixed = _masked(scores, mask).softmax(-1) @ value
        return mixed * 1.5  # departs: aggregate_values
