"""The axis vocabulary: one name, one meaning, everywhere.

Shapes in annotations, strategies, messages, tables and pages use these words and no others.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis of the contract.

    Attributes:
        name: The word used in annotations.
        meaning: One line for people.
        also: What documents and libraries write for it.
        smallest: The least legal size.
    """

    name: str
    meaning: str
    also: tuple[str, ...] = ()
    smallest: int = 1


AXES: tuple[Axis, ...] = (
    Axis("batch", "independent sequences", ("batch_size", "b", "bsz"), 0),
    Axis("q_len", "query positions", ("seq_len", "t", "tgt_len"), 0),
    Axis("kv_len", "key and value positions", ("src_len", "s"), 0),
    Axis("seq", "positions, where query and key positions are the same axis", ("seq_len", "t"), 0),
    Axis("d_model", "width of the model", ("c", "embed_dim", "n_embd", "dim")),
    Axis("heads", "query heads", ("num_heads", "h", "n_head")),
    Axis("kv_heads", "key and value heads; divides heads", ("num_kv_heads", "n_kv_groups")),
    Axis("group", "query heads that read one key and value head", ("group_size", "n_rep")),
    Axis("d_k", "width of one query or key head", ("head_dim", "d_head", "dim_head")),
    Axis("d_v", "width of one value head", ("head_dim",)),
    Axis("width", "features side by side before or after a split: heads times the width of a head"),
)

# Each product of axes that must hold whenever all its names are bound.
RELATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (("heads", ("kv_heads", "group")),)


def axis(name: str) -> Axis:
    """Return the axis called `name`.

    Raises:
        KeyError: If the vocabulary has no such axis.
    """
    for candidate in AXES:
        if candidate.name == name:
            return candidate
    raise KeyError(f"no axis is called {name!r}; the vocabulary is {', '.join(a.name for a in AXES)}")
