"""The layouts as data: under which name, and in which axes, a library keeps each canonical tensor.

A place is written as in a declaration: `path : axes`. A product that has the number of its parts in front
is stacked (`3*heads*d_k`), one that has it behind the heads is interleaved by head (`heads*3*d_k`); axes
that begin with `d_model` are those of a transposed matrix. `*` as a part of a path counts heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one family of checkpoints keeps the weights of an attention layer.

    Attributes:
        name: What people type.
        keeps: Who keeps weights like this.
        places: For each canonical (or fused) tensor its place.
        full_heads: The library's layer needs `heads * d_k = heads * d_v = d_model`.
        grouped: Fewer key/value heads than query heads can be kept.
        biases: `free`: each projection may have one; `together`: all or none; `none`: there are none.
        refused: Tensors that change what the layer computes and have no canonical counterpart.
        note: What else to know before the numbers are believed.
    """

    name: str
    keeps: str
    places: Mapping[str, str]
    full_heads: bool = False
    grouped: bool = False
    biases: str = "free"
    refused: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def _linear(q: str, k: str, v: str, o: str) -> dict[str, str]:
    """Return the places of four `torch.nn.Linear` modules."""
    modules = {"q": q, "k": k, "v": v, "o": o}
    return {f"W_{x}": f"{path}.weight" for x, path in modules.items()} | {
        f"b_{x}": f"{path}.bias" for x, path in modules.items()
    }


def _fused(qkv: str, rows: str, o: str) -> dict[str, str]:
    """Return the places of two `torch.nn.Linear` modules, the first of which is fused with these rows."""
    return {
        "W_qkv": f"{qkv}.weight : {rows} d_model",
        "b_qkv": f"{qkv}.bias : {rows}",
        "W_o": f"{o}.weight",
        "b_o": f"{o}.bias",
    }


STACKED, INTERLEAVED = "3*heads*d_k", "heads*3*d_k"
EXTRA_KEY = "add_bias_kv appends a learned key and value, which canonical weights cannot hold"
ROTARY = (
    "The model rotates queries and keys by their position after projecting; the weights alone are not it."
)

_LAYOUTS = (
    Layout(
        name="canonical",
        keeps="attnspec itself, and every built-in layer by canonical_weights()",
        places={name: name for name in ("W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o")},
        grouped=True,
    ),
    Layout(
        name="torch",
        keeps="torch.nn.MultiheadAttention whose kdim and vdim are embed_dim",
        places={
            "W_qkv": f"in_proj_weight : {STACKED} d_model",
            "b_qkv": f"in_proj_bias : {STACKED}",
            "W_o": "out_proj.weight",
            "b_o": "out_proj.bias",
        },
        full_heads=True,
        biases="together",
        refused={"bias_k": EXTRA_KEY, "bias_v": EXTRA_KEY},
    ),
    Layout(
        name="torch_separate",
        keeps="torch.nn.MultiheadAttention with a kdim or vdim of its own",
        places={
            "W_q": "q_proj_weight",
            "W_k": "k_proj_weight",
            "W_v": "v_proj_weight",
            "b_qkv": f"in_proj_bias : {STACKED}",
            "W_o": "out_proj.weight",
            "b_o": "out_proj.bias",
        },
        full_heads=True,
        biases="together",
        refused={"bias_k": EXTRA_KEY, "bias_v": EXTRA_KEY},
    ),
    Layout(
        name="gpt2",
        keeps="GPT-2 and its kin (Conv1D: matrices transposed, stacked)",
        places={
            "W_qkv": f"c_attn.weight : d_model {STACKED}",
            "b_qkv": f"c_attn.bias : {STACKED}",
            "W_o": "c_proj.weight : heads*d_v d_model",
            "b_o": "c_proj.bias",
        },
        note="Of a square c_proj.weight no shape tells gpt2 from nanogpt; c_attn.weight does.",
    ),
    Layout(
        name="nanogpt",
        keeps="nanoGPT and others that keep GPT-2's names on torch.nn.Linear (not transposed)",
        places=_fused("c_attn", STACKED, "c_proj"),
    ),
    Layout(
        name="bert",
        keeps="BERT, RoBERTa, Electra",
        places=_linear(
            "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
        ),
        note="A residual and a layer norm follow inside attention.output; they are not the attention's.",
    ),
    Layout(
        name="bart",
        keeps="BART, OPT, CLIP, Whisper",
        places=_linear("q_proj", "k_proj", "v_proj", "out_proj"),
        grouped=True,
        note="Whisper's keys have no bias; written to a fused bias, theirs becomes zeros.",
    ),
    Layout(
        name="llama",
        keeps="LLaMA, Mistral, Qwen2, Gemma in the form of transformers (grouped heads)",
        places=_linear("q_proj", "k_proj", "v_proj", "o_proj"),
        grouped=True,
        refused={
            "q_norm.weight": "queries are normalised after the projection",
            "k_norm.weight": "keys are normalised after the projection",
        },
        note=ROTARY
        + " Meta's own files order a head's rows for another rotation: convert them with transformers first.",
    ),
    Layout(
        name="phi3",
        keeps="Phi-3 and others with one stacked projection over grouped heads",
        places=_fused("qkv_proj", STACKED, "o_proj"),
        grouped=True,
        note=ROTARY,
    ),
    Layout(
        name="gpt_neox",
        keeps="GPT-NeoX, Pythia, BLOOM (interleaved by head)",
        places=_fused("query_key_value", INTERLEAVED, "dense"),
        note=ROTARY + " BLOOM adds a bias by distance instead.",
    ),
    Layout(
        name="timm",
        keeps="timm's Vision Transformers, DINOv2 (stacked)",
        places=_fused("qkv", STACKED, "proj"),
        refused={
            "q_norm.weight": "queries are normalised after the projection",
            "k_norm.weight": "keys are normalised after the projection",
        },
    ),
    Layout(
        name="linear",
        keeps="the first two documents' MultiHeadAttention: W_q, W_k, W_v, W_o as torch.nn.Linear",
        places=_linear("W_q", "W_k", "W_v", "W_o"),
        grouped=True,
    ),
    Layout(
        name="qkv_proj",
        keeps="the third document's MultiHeadAttention: qkv_proj interleaved by head, and out_proj",
        places=_fused("qkv_proj", INTERLEAVED, "out_proj"),
        note="It cuts the width into heads first and each head into three: a stacked file loads, wrongly.",
    ),
    Layout(
        name="per_head",
        keeps="a list of small torch.nn.Linear modules, one a head, as per_head_loop has",
        places={
            "W_q": "W_q.*.weight : heads*d_k d_model",
            "W_k": "W_k.*.weight : kv_heads*d_k d_model",
            "W_v": "W_v.*.weight : kv_heads*d_v d_model",
            "b_q": "W_q.*.bias : heads*d_k",
            "b_k": "W_k.*.bias : kv_heads*d_k",
            "b_v": "W_v.*.bias : kv_heads*d_v",
            "W_o": "W_o.weight",
            "b_o": "W_o.bias",
        },
        grouped=True,
    ),
)

LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in _LAYOUTS}


def find_layout(name: str) -> Layout:
    """Return the layout called `name`.

    Raises:
        UnknownNameError: If there is none; the message lists all and suggests the nearest.
    """
    if name not in LAYOUTS:
        raise UnknownNameError("layout", name, LAYOUTS)
    return LAYOUTS[name]
