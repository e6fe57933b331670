"""The names that people use, by what they mean. Each table is data: to teach a new name, add it here."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..conformance.caller import names_of


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Parameters of a call, by contract argument.
CALL_NAMES: dict[str, tuple[str, ...]] = {
    "query": _words(
        "query q queries Q x hidden_states input inputs X src query_states x_q queries_in tokens "
        "sequence embeddings inp hidden q_input input_q Q_in input_tensor features target source"
    ),
    "key": _words(
        "key k keys K key_states context memory encoder_hidden_states kv y x_kv key_value_states x_k "
        "encoder_output input_k K_in cond encoder_out enc_output xa source"
    ),
    "value": _words("value v values V value_states x_v input_v V_in"),
    "padding": _words("key_padding_mask padding_mask src_key_padding_mask pad_mask key_mask kv_mask"),
    "mask": _words("mask attn_mask attention_mask src_mask attn_bias_mask causal_mask additive_mask masks"),
    "bias": _words("bias attn_bias attention_bias position_bias rel_pos_bias"),
    "causal": _words("causal is_causal use_causal_mask"),
    "scale": _words("scale softmax_scale scaling sm_scale"),
    "window": _words("window window_size local_window"),
    "softcap": _words("softcap logits_soft_cap soft_cap logit_softcapping"),
    "dropout": _words("dropout dropout_p attn_dropout dropout_rate"),
    "return_weights": _words(
        "return_weights need_weights return_attention output_attentions return_attn return_attn_weights "
        "return_attention_scores"
    ),
}

# Arguments of the contract that a call may take or not.
OPTIONS = ("mask", "bias", "window", "softcap", "scale")

# Parameters of a constructor, by the contract name that is handed over.
NEW_NAMES: dict[str, tuple[str, ...]] = {
    "d_model": _words(
        "d_model embed_dim dim n_embd hidden_size d_in d_out embedding_dim model_dim width emb_dim "
        "n_embed embed_size hidden_dim d_embed d_embedding size units n_state feature_dim "
        "num_features input_dim in_dim query_dim num_hiddens d_emb channels features n_feat "
        "encoder_embed_dim decoder_embed_dim"
    ),
    "heads": _words(
        "heads num_heads n_heads n_head h nhead num_attention_heads nheads n_query_heads num_q_heads "
        "head n_attention_heads num_attn_heads heads_count H attention_heads nh head_num head_count "
        "encoder_attention_heads decoder_attention_heads"
    ),
    "kv_heads": _words(
        "kv_heads num_kv_heads n_kv_heads num_key_value_heads num_kv_groups n_kv_groups n_kv_head "
        "num_kv_head kv_head n_query_groups num_query_groups kv_n_heads"
    ),
    "group": _words("group group_size n_rep num_groups_per_head"),
    "d_k": _words(
        "d_k head_dim dim_head d_head head_size d_key d_qk d_kv kv_channels head_width dim_per_head"
    ),
    "d_v": _words("d_v d_value"),
    "dropout": _words(
        "dropout dropout_p attn_dropout attn_pdrop dropout_prob attention_probs_dropout_prob "
        "attention_dropout_prob dropout_rate p_dropout drop p attn_drop attention_dropout"
    ),
    "bias": _words("bias qkv_bias use_bias attention_bias add_bias"),
    "batch_first": _words("batch_first"),
    "max_len": _words(
        "max_len context_length block_size max_seq_len seq_len max_length n_ctx "
        "max_position_embeddings ctx_len max_seq_length"
    ),
}

# What Keras calls the widths of one head, and the model's: only where no other parameter is the model's.
PER_HEAD: dict[str, tuple[str, ...]] = {
    "d_k": _words("key_dim"),
    "d_v": _words("value_dim"),
    "d_model": _words("output_shape"),
}

# Where canonical tensors are kept, by the attribute that holds a linear layer.
WEIGHT_NAMES: dict[str, tuple[str, ...]] = {
    "q": _words(
        "W_q w_q W_query w_query q_proj query to_q q_linear wq WQ W_Q query_proj query_projection "
        "fc_q w_qs q_lin linear_q q_map q Wq linears.0 projections.0 queries query_layer toqueries "
        "proj_q q_net w_q_proj query_linear"
    ),
    "k": _words(
        "W_k w_k W_key w_key k_proj key to_k k_linear wk WK W_K key_proj key_projection fc_k w_ks "
        "k_lin linear_k k_map k Wk linears.1 projections.1 keys key_layer tokeys proj_k k_net "
        "w_k_proj key_linear"
    ),
    "v": _words(
        "W_v w_v W_value w_value v_proj value to_v v_linear wv WV W_V value_proj value_projection "
        "fc_v w_vs v_lin linear_v v_map v Wv linears.2 projections.2 values value_layer tovalues "
        "proj_v v_net w_v_proj value_linear"
    ),
    "o": _words(
        "W_o w_o w_concat out_proj o_proj to_out.0 to_out c_proj proj output dense wo WO W_O out "
        "fc_out fc linears.3 projections.3 output_proj output_projection out_linear out_lin "
        "linear_out o Wo unifyheads fc_o proj_out output_linear final_linear linear combine out_layer "
        "attn_out w_out W_out projection o_net proj_o"
    ),
    "qkv": _words(
        "qkv qkv_proj to_qkv c_attn W_qkv Wqkv in_proj w_qkv qkv_linear qkv_projection "
        "query_key_value attn proj_qkv W_pack qkv_layer linear_qkv packed_proj"
    ),
    "kv": _words("kv to_kv kv_proj W_kv w_kv kv_linear Wkv key_value"),
}


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a callable's parameters by name, without `self`; empty where Python cannot tell."""
    # A scripted function says `(*args, **kwargs)` to Python and its names in a schema of its own.
    if isinstance(function, torch.jit.ScriptFunction):
        return {a.name: _scripted(a) for a in function.schema.arguments}  # type: ignore[attr-defined]
    try:
        found = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}
    return {name: p for name, p in found.items() if name != "self"}


def _scripted(argument: Any) -> inspect.Parameter:
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def match_names(names: Iterable[str], table: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return, for each meaning in `table`, the first of `names` that stands for it."""
    there = list(names)
    taken: set[str] = set()
    found: dict[str, str] = {}
    for meaning, words in table.items():
        for word in words:
            if word in there and word not in taken:
                found[meaning] = word
                taken.add(word)
                break
    return found


def named(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the parameters that have a name of their own, without `*args` and `**kwargs`."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, parameter in parameters.items() if parameter.kind not in several]


def match_sizes(names: Iterable[str]) -> dict[str, str]:
    """Return, for each size that a constructor takes, the first of `names` that stands for it."""
    there = list(names)
    found = match_names(there, NEW_NAMES)
    if "heads" in found and "key_dim" in there and not {"d_model", "d_k"} & set(found):
        found |= match_names(there, PER_HEAD)
    return found


def names_in_call(call: str) -> dict[str, str]:
    """Return the contract names that occur in a call expression."""
    return {name: name for name in names_of(compile(call, "<declared call>", "eval")) if name in CALL_NAMES}


# What a call wants beside the contract's arguments, and what undoes it: `(parameter, expression)`.
COS, SIN = (
    "torch.ones(batch, q_len, d_k, dtype=query.dtype)",
    "torch.zeros(batch, q_len, d_k, dtype=query.dtype)",
)
NEUTRAL_ARGUMENTS: dict[str, str] = {
    "position_embeddings": f"({COS}, {SIN})",
    "cos": f"{COS}[0]", "sin": f"{SIN}[0]",
    "freqs_cis": "torch.polar(torch.ones(q_len, d_k // 2), torch.zeros(q_len, d_k // 2))",
    "freqs": "torch.zeros(q_len, d_k // 2)",
    "position_ids": "torch.arange(q_len)[None].expand(batch, q_len)",
    "start_pos": "0",
}  # fmt: skip

# Parameters of a call that choose a form of the output, and the value that gives the contract's.
CALL_CONSTANTS: dict[str, str] = {"average_attn_weights": "False"}

# Parameters of a constructor that choose what a call may choose as well.
OPTION_NAMES: dict[str, tuple[str, ...]] = {
    "causal": _words("causal is_causal use_causal_mask causal_mask masked autoregressive use_mask"),
    "mask": _words("mask attn_mask attention_mask causal_mask"),
    "window": _words("window window_size local_window sliding_window attention_window window_len"),
}

# Parameters of a constructor that are no size, and a value for a test.
NEW_CONSTANTS: dict[str, str] = {
    "layer_idx": "0",
    "layer_id": "0",
    "layer_number": "1",
    "device": "None",
    "dtype": "None",
    "n_layer": "1",
    "num_layers": "1",
    "num_hidden_layers": "1",
    "vocab_size": "64",
    "flash": "False",
    "use_flash": "False",
    "use_cache": "False",
    "rope_theta": "10000.0",
    "layer_norm_eps": "1e-5",
    "rms_norm_eps": "1e-6",
    "norm_eps": "1e-5",
    "eps": "1e-5",
    "add_zero_attn": "False",
    "output_attentions": "False",
    "mlp_ratio": "4",
    "intermediate_size": "4 * d_model",
    "d_ff": "4 * d_model",
    "is_decoder": "False",
    "scale": "None",
    "temperature": "d_k ** 0.5",
}

CONFIG_NAMES = (
    "config",
    "cfg",
    "conf",
    "args",
    "params",
    "hparams",
    "model_args",
    "model_config",
    "opt",
    "options",
    "settings",
    "c",
    "hp",
)

# A parameter with one of these parts in its path is a bias by position; zeros undo it.
POSITION_PARAMETERS = ("relative_attention_bias", "relative_position_bias", "rel_pos_bias", "rel_bias")

# A buffer with one of these parts in its path holds positions; the number undoes them.
POSITION_BUFFERS: dict[str, float] = {
    "inv_freq": 0.0,
    "cos": 1.0,
    "sin": 0.0,
    "freqs": 0.0,
    "theta": 0.0,
    "slopes": 0.0,
    "rope": 0.0,
}
