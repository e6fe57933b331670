"""Subjects, the declarations that they need, and the verdict that is right for them: data alone.

A right subject fails nothing of what is checked; a mistake fails the clauses named. `lines` are the
declarations that a person must write: each is what the message of the run without it proposes.
"""

from dataclasses import dataclass
from pathlib import Path

SUBJECTS = Path(__file__).parent / "subjects"
LAYER = (
    "value.plain",
    "value.layer_plain",
    "params.each_matters",
    "mask.value",
    "mask.polarity",
    "causal.value",
)
PLAIN_CORE = ("value.plain", "value.roles", "mask.value", "mask.polarity")
CORE = ("value.plain", "value.roles", "mask.value", "mask.polarity", "causal.value", "scale.options")


@dataclass(frozen=True)
class Row:
    """One subject.

    Attributes:
        target: `file:Object` in the folder of subjects, or `package.module:Object`.
        lines: What must be declared, `key=value` each.
        says: Parts of the findings.
        fails: Clauses that must fail; none for a right subject.
        asks: Clauses that must be questions.
        checks: Clauses that are run and, unless they are in `fails` or `asks`, must not fail.
        wrong: Whether it has a mistake.
    """

    target: str
    lines: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    checks: tuple[str, ...] = LAYER
    wrong: bool = False

    @property
    def text(self) -> str:
        """The target as a person would write it."""
        file, _, name = self.target.partition(":")
        return f"{SUBJECTS / file}.py:{name}" if "." not in file else self.target


def right(
    target: str,
    *says: str,
    lines: tuple[str, ...] = (),
    asks: tuple[str, ...] = (),
    checks: tuple[str, ...] = LAYER,
    fails: tuple[str, ...] = (),
) -> Row:
    """A right subject; `fails` are what it leaves open beside the mistakes meant here."""
    return Row(target, lines, says, fails, asks, (*checks, *fails, *asks))


def wrong(
    target: str,
    *fails: str,
    lines: tuple[str, ...] = (),
    says: tuple[str, ...] = (),
    asks: tuple[str, ...] = (),
    passes: tuple[str, ...] = (),
) -> Row:
    """A subject with one mistake."""
    return Row(target, lines, says, fails, asks, (*fails, *asks, *passes), wrong=True)


DOCUMENTS = (
    right(
        "documents:First",
        "True = blocked, as its own words say",
        "W_q W_k W_v W_o with bias",
        checks=(*LAYER, "shape.output", "value.layer", "gradient.parameters", "gradient.query"),
        fails=("mask.dead_row.zero", "dtype.mask"),
    ),
    wrong(
        "documents:Second",
        "shape.output",
        "value.plain",
        says=("NameError: name 'num_heads' is not defined",),
    ),
    wrong(
        "documents:SecondMended",
        "params.output_projection",
        passes=("value.plain", "shape.output"),
        says=("no output projection",),
    ),
    wrong("documents:SecondGrouped", "grouped.order"),
    wrong(
        "documents:Third",
        "mask.value",
        "mask.polarity",
        lines=("mask_shape=batch q_len kv_len",),
        says=("interleaved by head",),
        passes=("value.plain", "value.layer_plain"),
    ),
    right("documents:Third", "interleaved by head", fails=("mask.dead_row.zero",), asks=("mask.broadcast",)),
)

CONSTRUCTION = (
    right("construction:EmbedDim", "q_proj k_proj v_proj o_proj without bias", "True = may attend"),
    wrong("construction:EmbedDimUnscaled", "value.plain", "scale.default"),
    right(
        "construction:FourLinears",
        "linears.0 linears.1 linears.2 linears.3",
        "batch q_len kv_len",
        checks=(*LAYER, "value.cross_sources"),
    ),
    wrong("construction:FourLinearsNoTranspose", "value.plain", "value.layer_plain"),
    right(
        "construction:DimHead",
        "to_q to_kv (stacked) to_out.0",
        "dropout on the output",
        checks=(*LAYER, "value.cross_sources"),
    ),
    wrong("construction:DimHeadWrongAxis", "value.plain"),
    right(
        "construction:Book",
        "W_query W_key W_value out_proj",
        "always on",
        checks=(*LAYER, "causal.future", "dropout.survivors"),
    ),
    wrong(
        "construction:BookAntiCausal",
        "causal.value",
        "causal.future",
        says=("the past is hidden instead of the future",),
    ),
    wrong("construction:BookBeyondBuffer", "causal.future", passes=("value.plain",)),
    right("construction:CausalSelfAttention", "c_attn (stacked) c_proj", "always on"),
    wrong("construction:CausalSelfAttentionHeadWidth", "scale.default"),
    right("construction:DictConfig", "wq wk wv wo"),
    right("construction:AttributeConfig", "query key value dense"),
    right("construction:Grouped", "q_proj k_proj v_proj o_proj", checks=(*LAYER, "grouped.order")),
    wrong("construction:GroupedTiled", "grouped.order"),
    right("construction:make_attention", "q_proj k_proj v_proj o_proj"),
    wrong("construction:make_unscaled", "value.plain"),
    right("construction:instance", "q_proj k_proj v_proj o_proj"),
    wrong("construction:instance_unscaled", "value.plain"),
    right("construction:namespace_instance", "query key value dense"),
    right(
        "construction:Opaque",
        "inner.q_proj",
        lines=("new=Opaque(width_of_everything=d_model, how_many=heads)",),
    ),
)

CONFIGS = (
    right("configs:ByGet", "wq wk wv wo"),
    wrong("configs:ByGetUnscaled", "value.plain", "scale.default"),
    right("configs:ByPop", "wq wk wv wo"),
    right("configs:ByName", "wq wk wv wo", checks=(*LAYER, "dropout.survivors")),
    right("configs:ByNameAndKey", "wq wk wv wo"),
    right("configs:HandedDown", "inner.wq inner.wk inner.wv inner.wo"),
    right("configs:Shared", "wq wk wv wo", checks=(*LAYER, "dropout.survivors", "dropout.random")),
    wrong("configs:SharedForgotten", "dropout.survivors", passes=("value.plain",)),
)

PACKED = ("layout=batch q_len heads d_k", "unsupported.cross=packed", "unsupported.value_width=packed")
ARGUMENTS = (
    right("arguments:OtherNames", "wq wk wv wo", checks=(*LAYER, "value.layer")),
    wrong("arguments:OtherNamesForgotten", asks=("value.cross_sources",), passes=("value.plain",)),
    right("arguments:OnlySource", "wq wk wv wo", "True = may attend"),
    right("arguments:HeadWidth", "query key value output", checks=(*LAYER, "value.cross_sources")),
    right("arguments:keras_instance", "query key value output"),
    right("arguments:NeedsLengths", "argument valid_lens: not known, called with None, not checked"),
    right("arguments:MayHaveLengths", "a cache (layer_past)"),
    right("arguments:needs_lengths", "argument seq_lens: not known, called with None", checks=PLAIN_CORE),
    right("arguments:may_have_lengths", "argument kv_lens: not known, not checked", checks=PLAIN_CORE),
    right(
        "arguments:packed",
        lines=("call=f(torch.stack((query, key, value), 2))", *PACKED),
        checks=PLAIN_CORE,
    ),
    right(
        "arguments:half_packed",
        lines=("call=f(q=query, kv=torch.stack((key, value), 2))", PACKED[0], PACKED[2]),
        checks=(*PLAIN_CORE, "shape.cross"),
    ),
    right("arguments:PlainCore", lines=("call=f()(query=query, key=key, value=value)",), checks=PLAIN_CORE),
)

WEIGHTS = (
    right("weights:Concat", "w_q w_k w_v w_concat", checks=(*LAYER, "value.cross_sources")),
    wrong("weights:ConcatKeysForValues", "value.cross_sources"),
    right("weights:Vision", "qkv (stacked) proj"),
    wrong("weights:VisionNoSoftmaxAxis", "value.plain"),
    right("weights:Transposed", "c_attn (stacked) (transposed) c_proj"),
    wrong("weights:TransposedLastHead", "value.plain"),
    right("weights:Raw", "W_Q W_K W_V W_O without bias"),
    wrong("weights:RawKeyTwice", "value.layer_plain", "params.each_matters"),
    right("weights:HeadModules", "heads.*.query heads.*.key heads.*.value proj", "always on"),
    wrong("weights:HeadModulesReversed", "value.layer_plain"),
    right("weights:LinearPerHead", "queries.* keys.* values.* out"),
    wrong("weights:LinearPerHeadFirstValue", "value.layer_plain"),
    right("weights:InProjection", "in_proj_weight (stacked) out_proj with bias"),
    wrong("weights:InProjectionScaledTwice", "scale.default"),
    right("weights:OtherLanguage", "frage schluessel wert ausgang"),
    wrong(
        "weights:OtherLanguageUnscaled",
        "value.plain",
        says=("frage schluessel wert ausgang",),
    ),
    right(
        "weights:Unknowable",
        "not recognised",
        checks=(
            "value.batch_independent",
            "mask.irrelevant.finite",
            "shape.output",
            "determinism.repeat",
            "causal.off",
        ),
    ),
    wrong("weights:UnknowableBatchMixed", "value.batch_independent"),
    right("weights:BiasesBeside", checks=("value.plain", "value.layer", "gradient.parameters")),
    wrong("weights:BiasesBesideSwapped", "value.layer", passes=("shape.output",)),
    right("weights:InContainers", "to_q.0", checks=("value.plain", "value.layer")),
    right("weights:Interleaved", "Wqkv (interleaved by head) Wo"),
    wrong("weights:InterleavedMixed", "value.layer_plain"),
)

MASKS = (
    right("masks:RankThree", "of shape batch q_len kv_len"),
    right("masks:RankThreeUnlifted", asks=("mask.broadcast",)),
    wrong(
        "masks:RankThreeUnlifted",
        "mask.value",
        lines=("mask_shape=batch q_len kv_len",),
        passes=("value.plain",),
    ),
    right("masks:KeysOnly", "of shape batch kv_len"),
    wrong("masks:KeysOnlyOnQueries", "mask.value", passes=("value.plain",)),
    right("masks:Additive", "a float that is added"),
    wrong("masks:AdditiveDocumentedBool", asks=("mask.polarity",)),
    right("masks:FloatZeroOne", "1.0 = may attend"),
    wrong("masks:FloatZeroOneWrong", "mask.value", says=("no meaning or shape fits",)),
    right("masks:Blocked", "True = blocked, as its own words say"),
    wrong("masks:BlockedSilently", asks=("mask.polarity",), passes=("mask.value", "value.plain")),
    right("masks:BlockedSilently", "True = blocked", lines=("mask=blocked",)),
    wrong("masks:BlockedSilently", "mask.polarity", "mask.value", lines=("mask=attend",)),
    wrong("masks:BlockedAgainstWords", asks=("mask.polarity",)),
    wrong("masks:Ignored", "mask.value", "mask.polarity"),
    wrong("masks:AfterSoftmax", "mask.value"),
    right(
        "masks:TwoMasks",
        "q_len batch d_model, as its own words say",
        "key_padding_mask: True = padding",
        "True = blocked, as its own words say",
    ),
    wrong("masks:TwoMasksOneLost", "mask.value"),
    right("masks:AddedBesidePadding", "key_padding_mask: True = padding", "a float that is added"),
    wrong("masks:OddAxes", asks=("value.batch_independent",), passes=("value.plain",)),
    right(
        "masks:OddAxes",
        "q_len batch d_model",
        lines=("layout=q_len batch d_model",),
        checks=(*LAYER, "value.batch_independent"),
    ),
    wrong("masks:OddAxes", "value.batch_independent", lines=("layout=batch q_len d_model",)),
    right("masks:SequenceFirst", "q_len batch d_model, as its own words say"),
    wrong("masks:SequenceFirstUnscaled", "value.plain"),
    right("masks:Cut", "of shape q_len kv_len", checks=("value.plain", "mask.value")),
    right("masks:MustBeGiven", "must be there: none is torch.ones", checks=("value.plain", "mask.value")),
    wrong("masks:MustBeGivenBlocked", asks=("mask.polarity",), says=("must be there: none is torch.zeros",)),
)

BLOCKS = (
    right("blocks:PreNorm", "norms (norm)", "a residual"),
    wrong("blocks:PreNormUnscaled", "value.plain", "scale.default"),
    right(
        "blocks:PostNorm",
        "a residual) and a norm (layer_norm)",
        "w_qs w_ks w_vs fc",
        checks=(*LAYER, "weights.value"),
    ),
    wrong("blocks:Plus", asks=("value.layer_plain",), passes=("value.plain",)),
    right("blocks:Plus", lines=("tap=out_proj",)),
    wrong("blocks:Plus", "value.layer_plain", lines=("tap=none",)),
    right("blocks:KeywordOnly", "q_proj k_proj v_proj out_proj", checks=(*LAYER, "value.cross_sources")),
    wrong("blocks:KeywordOnlySwapped", "value.cross_sources"),
    right("blocks:ReturnsDataclass", checks=(*LAYER, "weights.value", "weights.shape")),
    wrong("blocks:ReturnsMeanWeights", "weights.shape", passes=("value.plain",)),
    right("blocks:WeightsFirst", "the output as member 1"),
    right("blocks:Rotated", "positions by freqs_cis", "wq wk wv wo", checks=(*LAYER, "grouped.order")),
    wrong("blocks:RotatedTiled", "grouped.order"),
    right("blocks:RotaryInside", "positions (inv_freq)"),
    wrong("blocks:RotaryInsideUnscaled", "scale.default"),
    right("blocks:Cached", "a cache (past, use_cache), not used and not checked"),
    right("blocks:HardDropout", "every nn.Dropout in it is set", checks=(*LAYER, "state.train_eval")),
    wrong("blocks:DropoutInEval", "dropout.eval_off"),
)

CORES = (
    right("cores:attention", checks=(*CORE, "grouped.order", "causal.alignment")),
    wrong("cores:attention_tiled", "grouped.order", passes=("value.permute_heads", "mask.all_true")),
    right("cores:upper_left", "aligned upper left", checks=(*CORE, "causal.alignment")),
    wrong("cores:upper_left_off_by_one", "causal.value", "causal.future"),
    right("cores:mask_first_asked", checks=PLAIN_CORE),
    right("cores:mask_must_be_given", "must be there: none is torch.ones", checks=PLAIN_CORE),
    right("cores:mask_must_be_added", "must be there: none is zeros", checks=(*PLAIN_CORE, "dtype.bfloat16")),
    wrong("cores:mask_must_be_given_unscaled", "scale.default", passes=("mask.all_true",)),
    right("cores:seq_first", "q_len batch heads d_k, as its own words", checks=PLAIN_CORE),
    right("cores:merged_batch", "batch*heads q_len d_k, as its own words", checks=PLAIN_CORE),
    right("cores:heads_last", "batch q_len heads d_k, as its own words", checks=CORE),
    wrong("cores:heads_last_wrong", "scale.options"),
    wrong("cores:heads_last_silently", asks=("shape.output",), passes=("value.plain",)),
    right("cores:heads_last_silently", lines=("layout=batch q_len heads d_k",), checks=CORE),
    right(
        "cores:registered",
        "the Hugging Face convention",
        "a float that is added",
        checks=(*CORE, "grouped.order", "weights.value"),
    ),
    wrong("cores:registered_scale_ignored", "scale.options"),
    right("cores:ScaledDotProduct", checks=(*CORE, "weights.value")),
    wrong("cores:ScaledDotProductWrongWidth", "scale.default"),
    right("cores:strange_names", lines=("call=f(a=query, b=key, c=value)",), checks=CORE),
    wrong("cores:wrong_axis", "value.plain"),
    right("cores:needs_its_scale", checks=("value.plain", "value.roles", "scale.explicit")),
    right(
        "cores:side_by_side",
        lines=("call=f(query, key, value, heads, causal)", "layout=batch q_len heads*d_k"),
        checks=("value.plain", "value.roles", "causal.value", "gradient.interleaved"),
    ),
    right("cores:always_causal", "always on", checks=(*CORE, "causal.future")),
)

CHOSEN = (
    right("chosen:Causal", "causal: chosen where it is constructed", checks=(*LAYER, "causal.future")),
    wrong("chosen:CausalLate", "causal.value", "causal.future", passes=("value.plain",)),
    wrong("chosen:CausalForgotten", asks=("causal.value",), passes=("value.plain",)),
    right(
        "chosen:CausalForgotten",
        lines=("unsupported.causal=the mask of the call does it",),
    ),
    right("chosen:Masked", "mask: chosen where it is constructed", "True = may attend"),
    wrong("chosen:MaskedInverted", asks=("mask.polarity",), passes=("value.plain",)),
    wrong("chosen:MaskedInverted", "mask.value", lines=("mask=attend",), passes=("value.plain",)),
    right(
        "chosen:Window",
        "window_size of its constructor counts keys, its own position among them",
        checks=(*LAYER, "window.value", "window.count"),
    ),
    right(
        "chosen:WindowBefore",
        "window_size of its constructor counts keys before its own position",
        checks=(*LAYER, "window.value", "window.count"),
    ),
    right("chosen:WindowTwoSided", "window_size of its constructor is left open"),
    wrong("chosen:WindowUnscaled", "value.plain", "window.value"),
)

SCRIPTS = (
    right("scripts:GlobalWidth", "heads.*.query heads.*.key heads.*.value proj", "always on"),
    wrong("scripts:GlobalWidthScaled", "value.plain", "scale.default"),
    right("scripts:four_heads", "heads.*.query heads.*.key heads.*.value proj"),
    wrong("scripts:four_heads_scaled", "value.plain", "scale.default"),
    right("scripts:HandedOn", "self.query self.key self.value output.dense", "a residual"),
    wrong("scripts:HandedOnUnscaled", "value.plain", "scale.default"),
    right("scripts:HeadMatrices", "W_Q W_K W_V W_O with bias", checks=(*LAYER, "value.layer")),
    wrong("scripts:HeadMatricesShared", "value.layer", passes=("value.plain",)),
    right("scripts:Packed", "packed_proj (stacked) out_proj with bias"),
    wrong("scripts:PackedNotMoved", "value.plain", "value.layer_plain"),
    right("scripts:RelativeBias", "positions (relative_attention_bias.weight)"),
    wrong("scripts:RelativeBiasUnscaled", "scale.default"),
    right("cores:module_dropout", "a module, handed over as nn.Dropout", checks=(*CORE, "dropout.survivors")),
    wrong("cores:module_dropout_forgotten", "dropout.survivors", passes=("value.plain",)),
    wrong("cores:registered_not_moved", asks=("shape.output",), passes=("value.plain",)),
)

LIBRARIES = (
    right(
        "torch.nn:MultiheadAttention",
        "in_proj_weight (stacked) out_proj with bias",
        "True = blocked, as its own words say",
        "key_padding_mask: True = padding",
        checks=(*LAYER, "weights.value"),
        fails=("weights.dead_row", "state.weights_flag"),
    ),
    right(
        "torch.nn.functional:scaled_dot_product_attention",
        "aligned upper left",
        checks=(*CORE, "grouped.order", "causal.alignment"),
        fails=("mask.irrelevant.nonfinite",),
    ),
)

TRANSFORMERS = (
    right(
        "transformers.models.gpt2.modeling_gpt2:GPT2Attention",
        "c_attn (stacked) (transposed) c_proj",
        "a float that is added",
    ),
    right(
        "transformers.models.bert.modeling_bert:BertSelfAttention",
        "query key value",
        checks=("value.plain", "mask.value"),
        fails=("params.output_projection",),
    ),
    right(
        "transformers.models.llama.modeling_llama:LlamaAttention",
        "position_embeddings",
        "q_proj k_proj v_proj o_proj",
        checks=(*LAYER, "grouped.order"),
    ),
    right(
        "transformers.models.llama.modeling_llama:eager_attention_forward",
        "the Hugging Face convention",
        checks=(*CORE, "grouped.order"),
    ),
    right(
        "transformers.integrations.sdpa_attention:sdpa_attention_forward",
        "the Hugging Face convention",
        "aligned upper left",
        checks=("value.plain", "causal.alignment"),
        fails=("causal.with_mask",),
    ),
)

OWN = (*DOCUMENTS, *CONSTRUCTION, *CONFIGS, *ARGUMENTS, *WEIGHTS, *MASKS, *BLOCKS, *CORES, *CHOSEN, *SCRIPTS)
ALL = (*OWN, *LIBRARIES)
