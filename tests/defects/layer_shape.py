"""Layers whose heads are split or merged the wrong way."""

from .bank import defect
from .reference import Layer


@defect(
    "shape",
    "B001 reczoo/FuxiCTR#30",
    "value.layer_plain",
    "params.head_major",
    case="heads=2, length 2",
    fingerprint="split_by_view",
)
class LayerSplitsByView(Layer):
    """The projection is viewed straight to `batch heads seq d_k`."""

    def split_heads(self, projected, heads):
        return projected.reshape(projected.shape[0], heads, projected.shape[1], self.d_k)

    def heads_first(self, split):
        return split


@defect(
    "shape",
    "common learner error",
    "params.head_major",
    "value.layer_plain",
    case="heads=2, d_k=2",
    fingerprint="heads_last_in_split",
)
class HeadsLastInTheSplit(Layer):
    """The width is cut as `d_k heads`: a head gets every other feature."""

    def split_heads(self, projected, heads):
        return projected.unflatten(-1, (self.d_k, heads)).transpose(-1, -2)


@defect(
    "shape",
    "B003 meta-pytorch/opacus#825",
    "value.layer_plain",
    case="heads=2, length 2",
    fingerprint="merged_by_view",
)
class MergesWithoutTranspose(Layer):
    """Heads are merged by a view, without moving them back."""

    def merge_heads(self, mixed):
        return mixed.reshape(mixed.shape[0], mixed.shape[2], -1)


@defect(
    "shape",
    "B003 meta-pytorch/opacus#825",
    "value.cross_sources",
    "value.layer",
    case="q_len != kv_len, heads=2",
)
class MergesWronglyWhenCross(Layer):
    """Only with another key input are heads merged by a view."""

    def sources(self, query, key, value):
        self.crossed = key is not None and key is not query
        return super().sources(query, key, value)

    def merge_heads(self, mixed):
        if self.crossed:
            return mixed.reshape(mixed.shape[0], mixed.shape[2], -1)
        return super().merge_heads(mixed)


@defect("shape", "common learner error", "params.head_major", "value.layer_plain", case="heads=2")
class MergesHeadsReversed(Layer):
    """Heads are laid side by side from the last to the first."""

    def merge_heads(self, mixed):
        return super().merge_heads(mixed.flip(1))


@defect("shape", "common learner error", "value.layer_plain", "value.layer", case="heads=2, d_k=2")
class MergesFeaturesFirst(Layer):
    """Features and heads are interleaved in the merged width."""

    def merge_heads(self, mixed):
        return mixed.permute(0, 2, 3, 1).flatten(2)


@defect(
    "shape",
    "B015 aipixel/AEMatter#3",
    "value.batch_independent",
    "value.layer_plain",
    case="batch=2, length 2",
    place="heads_first",
)
class SequenceFirstInside(Layer):
    """Batch-first input meets a core that expects the sequence first: tokens attend across the batch."""

    def attend(self, q, k, v, options):
        if q.shape != k.shape or "mask" in options or "bias" in options:
            return super().attend(q, k, v, options)
        mixed, weights = super().attend(*(t.transpose(0, 2) for t in (q, k, v)), options)
        return mixed.transpose(0, 2), weights


@defect("shape", "common learner error", "value.layer_plain", case="heads=2", place="merge_heads")
class HeadsAreSummed(Layer):
    """Heads are averaged and the mean repeated, not laid side by side."""

    def merge_heads(self, mixed):
        return super().merge_heads(mixed.mean(1, keepdim=True).expand_as(mixed))


@defect("shape", "common learner error", "value.layer_plain", case="any", place="project_queries")
class NormalisesItsInput(Layer):
    """A layer norm without parameters is applied to the queries."""

    def project_queries(self, x):
        return super().project_queries((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5))


@defect("shape", "B003 meta-pytorch/opacus#825", "value.layer_plain", "size.one", case="batch=1")
class OneSampleMergesByView(Layer):
    """For a single sample heads are merged by a view."""

    def merge_heads(self, mixed):
        if mixed.shape[0] == 1:
            return mixed.reshape(1, mixed.shape[2], -1)
        return super().merge_heads(mixed)
