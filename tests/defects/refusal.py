"""Arguments that do not fit, taken without a word."""

import torch

from .bank import defect
from .reference import Core


@defect(
    "error-handling",
    "B026 line/lighthouse#77",
    "refusal.mask_rank",
    case="a mask of rank 3",
    place="mask_scores",
)
class MaskOfRankThree(Core):
    """A mask of rank 3 is broadcast: its first axis is taken for heads."""

    def refuse_mask(self, query, key, mask):
        if mask.dim() != 3:
            super().refuse_mask(query, key, mask)


@defect(
    "error-handling",
    "B034 huggingface/transformers#41443",
    "refusal.mask_dtype",
    case="an integer mask",
    place="mask_scores",
)
class MaskOfAnyDtype(Core):
    """Whatever is not 0 may attend: an additive mask is inverted."""

    def refuse_mask(self, query, key, mask):
        super().refuse_mask(query, key, mask.bool())

    def read_mask(self, mask, query, key, call):
        return mask.bool()


@defect(
    "error-handling",
    "common learner error",
    "refusal.mask_shape",
    case="a mask one key short",
    place="mask_scores",
)
class MaskRepeated(Core):
    """A mask that is too short starts again from its beginning."""

    def refuse_mask(self, query, key, mask):
        pass

    def read_mask(self, mask, query, key, call):
        rows = torch.arange(query.shape[2]) % max(mask.shape[-2], 1)
        columns = torch.arange(key.shape[2]) % max(mask.shape[-1], 1)
        return mask[..., rows, :][..., columns]


@defect("error-handling", "common learner error", "refusal.widths", case="d_k=5 and 4", place="scores")
class WidthsCut(Core):
    """Queries and keys are cut to the narrower of both."""

    def __call__(self, query, key, value, **options):
        width = min(query.shape[-1], key.shape[-1])
        return super().__call__(query[..., :width], key[..., :width], value, **options)


@defect(
    "error-handling",
    "common learner error",
    "refusal.lengths",
    case="three values for five keys",
    place="aggregate_values",
)
class KeysCutToTheValues(Core):
    """Keys are cut to as many as there are values."""

    def __call__(self, query, key, value, **options):
        length = min(key.shape[2], value.shape[2])
        return super().__call__(query, key[:, :, :length], value[:, :, :length], **options)


@defect(
    "error-handling", "B092 pytorch/pytorch#99012", "refusal.mixed_dtypes", case="a float64 key", place=""
)
class DtypesCast(Core):
    """Keys and values are cast to the query's dtype."""

    def __call__(self, query, key, value, **options):
        return super().__call__(query, key.to(query.dtype), value.to(query.dtype), **options)


@defect("error-handling", "B172 pytorch/pytorch#88669", "refusal.says_why", case="d_k=5 and 4", place="")
class RefusesWithoutAReason(Core):
    """What does not fit raises without a word."""

    def refuse(self, query, key, value, call):
        try:
            super().refuse(query, key, value, call)
        except (ValueError, TypeError):
            raise ValueError("bad input") from None
