"""Layers whose parameters are missing, shared, swapped, in another layout, or not parameters at all."""

import torch
from torch import nn
from torch.nn.functional import linear

from .bank import defect
from .reference import Layer


@defect(
    "weights/params",
    "B012 rasbt/LLMs-from-scratch#67",
    "params.output_projection",
    case="any",
    place="project_output",
    fingerprint="output_projection_missing",
)
class NoOutputProjection(Layer):
    """There is no output projection."""

    def make(self, bias):
        super().make(bias)
        del self.W_o

    def project_output(self, merged):
        return merged


@defect(
    "weights/params",
    "B012 rasbt/LLMs-from-scratch#67",
    "params.output_projection",
    "params.each_matters",
    case="any",
    fingerprint="output_projection_missing",
)
class OutputProjectionUnused(Layer):
    """The output projection is made and never called."""

    def project_output(self, merged):
        return merged


@defect(
    "weights/params",
    "common learner error",
    "params.each_matters",
    "value.layer_plain",
    case="d_model=2",
    fingerprint="output_projection_transposed",
)
class OutputProjectionTransposed(Layer):
    """The output projection is multiplied from the other side."""

    def project_output(self, merged):
        bias = self.W_o.bias
        return merged @ self.W_o.weight + (0.0 if bias is None else bias)


@defect("weights/params", "B157 pyg-team/pytorch_geometric#1642", "params.each_matters", case="any")
class KeysProjectedByTheQueries(Layer):
    """Keys go through the queries' projection; that of the keys is dead."""

    def project_keys(self, x):
        return self.W_q(x)[..., : self.W_k.out_features]


@defect(
    "weights/params",
    "B157 pyg-team/pytorch_geometric#1642",
    "params.start_apart",
    case="a new layer",
    place="",
)
class KeysStartAsQueries(Layer):
    """The key projection starts as a copy of the query projection."""

    def make(self, bias):
        super().make(bias)
        with torch.no_grad():
            self.W_k.weight.copy_(self.W_q.weight[: self.W_k.out_features])


@defect(
    "weights/params",
    "B164 common learner error",
    "params.complete",
    case="any",
    place="",
    weights={
        "W_q": "projections.0.weight",
        "W_k": "projections.1.weight",
        "W_v": "projections.2.weight",
        "W_o": "W_o.weight",
    },
)
class ProjectionsInAList(Layer):
    """The projections are kept in a plain list: they are no parameters."""

    def make(self, bias):
        super().make(False)
        self.projections = [self.W_q, self.W_k, self.W_v]
        del self.W_q, self.W_k, self.W_v

    def project_queries(self, x):
        return self.projections[0](x)

    def project_keys(self, x):
        return self.projections[1](x)

    def project_values(self, x):
        return self.projections[2](x)


@defect(
    "weights/params",
    "B156 MarcoMeter/episodic-transformer-memory-ppo#22",
    "params.each_matters",
    "value.layer_plain",
    case="heads=2",
    place="project_queries",
)
class HeadsSeeTheirSliceOnly(Layer):
    """Each head's queries are projected from its own slice of the input alone."""

    def project_queries(self, x):
        blocks = self.W_q.weight.unflatten(0, (self.heads, -1)).unflatten(-1, (self.heads, -1))
        own = torch.stack([blocks[h, :, h] for h in range(self.heads)])
        bias = self.W_q.bias
        made = torch.einsum("bshc,hdc->bshd", x.unflatten(-1, (self.heads, -1)), own).flatten(2)
        return made if bias is None else made + bias


@defect(
    "weights/params",
    "B156 MarcoMeter/episodic-transformer-memory-ppo#22",
    "params.each_matters",
    case="heads=2",
    place="project_values",
)
class OneHeadsRowsForAll(Layer):
    """Every head's values use the first head's rows."""

    def project_values(self, x):
        bias = self.W_v.bias
        made = linear(x, self.W_v.weight[: self.d_k], None if bias is None else bias[: self.d_k])
        return made.repeat(1, 1, self.kv_heads)


@defect(
    "weights/params", "common learner error", "params.each_matters", case="a bias", fingerprint="bias_dropped"
)
class ValueBiasDropped(Layer):
    """The bias of the values is not added."""

    def project_values(self, x):
        return linear(x, self.W_v.weight)


@defect(
    "weights/params", "common learner error", "params.each_matters", case="a bias", fingerprint="bias_dropped"
)
class OutputBiasDropped(Layer):
    """The bias of the output is not added."""

    def project_output(self, merged):
        return linear(merged, self.W_o.weight)


@defect("weights/params", "common learner error", "params.each_matters", case="a bias")
class OutputBiasAddedOncePerHead(Layer):
    """The output is summed head by head, and each head adds the bias."""

    def project_output(self, merged):
        slices = zip(merged.split(self.d_k, -1), self.W_o.weight.split(self.d_k, -1), strict=True)
        return sum(linear(part, columns, self.W_o.bias) for part, columns in slices)


@defect(
    "weights/params",
    "B013 Khaliladib11/Transformer-from-scratch#1",
    "params.each_matters",
    case="d_k = d_v",
    place="project_values",
)
class ValuesFromTheKeyProjection(Layer):
    """Values go through the keys' projection."""

    def project_values(self, x):
        return self.W_k(x)


@defect(
    "weights/params",
    "common learner error",
    "params.each_matters",
    case="any",
    place="project_queries",
)
class QueriesAndKeysSwapped(Layer):
    """The projections of queries and keys are exchanged, where their shapes agree."""

    def project_queries(self, x):
        return self.W_k(x) if self.W_k.weight.shape == self.W_q.weight.shape else self.W_q(x)

    def project_keys(self, x):
        return self.W_q(x) if self.W_k.weight.shape == self.W_q.weight.shape else self.W_k(x)


@defect(
    "shape",
    "B014 PaddlePaddle/Paddle#47475",
    "value.cross_sources",
    case="a key input, no value input",
    place="project_values",
)
class ValuesFromTheQueryInput(Layer):
    """A value input that is left out defaults to the query's, where the lengths agree."""

    def sources(self, query, key, value):
        key = query if key is None else key
        fits = value is None and key.shape == query.shape
        return key, query if fits else (key if value is None else value)


@defect(
    "shape",
    "B013 Khaliladib11/Transformer-from-scratch#1",
    "value.cross_sources",
    "gradient.inputs",
    case="a key and a value input",
    place="project_values",
)
class ValueInputIgnored(Layer):
    """The value input is not looked at."""

    def sources(self, query, key, value):
        return super().sources(query, key, None)


@defect(
    "shape",
    "B013 Khaliladib11/Transformer-from-scratch#1",
    "value.cross_sources",
    case="a key input of the same length",
    place="project_keys",
)
class KeyInputIgnored(Layer):
    """Keys always come from the query input, where the lengths agree."""

    def sources(self, query, key, value):
        same = key is not None and key.shape == query.shape
        key, value = super().sources(query, key, value)
        return (query if same else key), value


class Fused(Layer):
    """One matrix for queries, keys and values, stacked."""

    def __init__(self, d_model, heads, *, bias=True, dropout=0.0):
        super().__init__(d_model, heads, bias=bias, dropout=dropout)

    def make(self, bias):
        self.W_qkv = nn.Linear(self.d_model, 3 * self.d_model, bias=bias)
        self.W_o = nn.Linear(self.d_model, self.d_model, bias=bias)

    def part(self, x, number):
        """Return the projected queries (0), keys (1) or values (2)."""
        return self.W_qkv(x).chunk(3, -1)[number]

    def project_queries(self, x):
        return self.part(x, 0)

    def project_keys(self, x):
        return self.part(x, 1)

    def project_values(self, x):
        return self.part(x, 2)


STACKED = {
    "W_qkv": "W_qkv.weight : 3*heads*d_k d_model",
    "b_qkv": "W_qkv.bias : 3*heads*d_k",
    "W_o": "W_o.weight",
    "b_o": "W_o.bias",
}


@defect(
    "weights/params",
    "B161 BlackSamorez/tensor_parallel#103",
    "value.layer_plain",
    "params.head_major",
    case="heads=2, fused weights",
    place="split_heads",
    fingerprint="stacked_read_as_interleaved",
    weights=STACKED,
)
class StackedReadAsInterleaved(Fused):
    """A stacked checkpoint is read as interleaved by head."""

    def part(self, x, number):
        blocks = self.W_qkv(x).unflatten(-1, (self.heads, 3, self.d_k))
        return blocks[:, :, :, number].flatten(2)


@defect(
    "weights/params",
    "B162 awslabs/slapo#46",
    "params.each_matters",
    "value.layer_plain",
    case="fused weights",
    place="project_queries",
    weights=STACKED,
)
class FusedInAnotherOrder(Fused):
    """The fused rows are read as keys, values, queries."""

    def part(self, x, number):
        return self.W_qkv(x).chunk(3, -1)[(number - 1) % 3]


@defect(
    "weights/params", "B158 pytorch/pytorch#26698", "gradient.live", "params.no_extra", case="any", place=""
)
class DeadParameter(Layer):
    """A packed projection is registered beside the ones in use."""

    def make(self, bias):
        super().make(bias)
        self.packed = nn.Parameter(torch.zeros(3 * self.d_model, self.d_model))


@defect("weights/params", "common learner error", "params.no_extra", case="any", place="")
class LearnedTemperature(Layer):
    """A learned factor on the scores, 1 at the start."""

    def make(self, bias):
        super().make(bias)
        self.temperature = nn.Parameter(torch.ones(()))

    def project_queries(self, x):
        return super().project_queries(x) * self.temperature


@defect(
    "weights/params",
    "common learner error",
    "params.trainable",
    "gradient.parameters",
    case="any",
    place="project_output",
)
class OutputProjectionFrozen(Layer):
    """The output projection does not require a gradient."""

    def make(self, bias):
        super().make(bias)
        self.W_o.requires_grad_(False)


@defect(
    "weights/params",
    "B012 rasbt/LLMs-from-scratch#67",
    "params.sizes",
    case="heads=6, d_k=2",
    place="project_queries",
)
class HeadsAtLeastFourWide(Layer):
    """A head is never narrower than four: narrow heads get more rows than `d_model / heads`."""

    def make(self, bias):
        self.d_k = max(self.d_k, 4)
        width, narrow = self.heads * self.d_k, self.kv_heads * self.d_k
        self.W_q, self.W_o = (
            nn.Linear(self.d_model, width, bias=bias),
            nn.Linear(width, self.d_model, bias=bias),
        )
        self.W_k, self.W_v = (nn.Linear(self.d_model, narrow, bias=bias) for _ in range(2))


@defect(
    "weights/params",
    "B157 pyg-team/pytorch_geometric#1642",
    "params.round_trip",
    "params.distinct",
    case="any",
    place="project_keys",
)
class QueriesAndKeysTied(Layer):
    """Queries and keys share one projection, where their shapes agree."""

    def make(self, bias):
        super().make(bias)
        if self.kv_heads == self.heads:
            self.W_k = self.W_q


@defect(
    "error-handling",
    "B167 fla-org/flash-linear-attention#1029",
    "refusal.sizes",
    case="d_model=7, heads=3",
    place="split_heads",
)
class WidthFloored(Layer):
    """A width that heads do not divide is rounded down."""

    def __init__(self, d_model, heads, *, kv_heads=None, bias=True, dropout=0.0):
        super().__init__(d_model // heads * heads, heads, kv_heads=kv_heads, bias=bias, dropout=dropout)
        self.outer = d_model

    def forward(self, query, *args, **options):
        result = super().forward(query[..., : self.d_model], *args, **options)
        missing = self.outer - self.d_model
        if isinstance(result, tuple):
            return nn.functional.pad(result[0], (0, missing)), result[1]
        return nn.functional.pad(result, (0, missing))


@defect(
    "scale",
    "common learner error",
    "scale.default",
    case="heads=2",
    place="scale_scores",
    fingerprint="scale_by_d_model",
)
class LayerScalesByTheModel(Layer):
    """The layer hands the root of `d_model` to its core."""

    def attend(self, q, k, v, options):
        return super().attend(q, k, v, {"scale": self.d_model**-0.5, **options})


@defect(
    "gqa",
    "B066 tenstorrent/tt-metal#57366",
    "grouped.order",
    case="heads=4, kv_heads=2",
    place="share_heads",
    fingerprint="heads_tiled",
)
class LayerTilesKeyHeads(Layer):
    """The layer repeats its key/value heads by tiling before it attends."""

    def attend(self, q, k, v, options):
        group = self.heads // self.kv_heads
        return super().attend(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), options)
