"""Small pictures of masks and head orders, drawn from the stages themselves, and what this torch does."""

from collections.abc import Iterable, Sequence

import torch

from attnspec import stages

from .site import Output, table

CELL = 26
LEFT = 64
TOP = 30
STRIPES = (
    '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" stroke="#b3471d" stroke-width="3"/>'
    "</pattern></defs>"
)


def write(out: Output) -> None:
    """Write each picture as a part, and the table of what this torch does."""
    out.part(
        "picture-polarity.md",
        figure(polarity(), "One mask, written in three conventions. The query sees keys 0 and 1."),
    )
    both = causal("lower_right") + causal("upper_left")
    out.part(
        "picture-causal.md",
        figure(
            both,
            "Three queries, five keys. Lower right: the last query sees all. Upper left: query 0 sees key 0.",
        ),
    )
    out.part(
        "picture-dead.md", figure(dead(), "Query 1 may attend to nothing (striped): its output is zero.")
    )
    out.part(
        "picture-grouped.md",
        figure(
            grouped(), "Six query heads, two key/value heads. The contract repeats; tiling pairs other heads."
        ),
    )
    out.part(
        "picture-window.md",
        figure(window(), "Six positions, causal, left = 2: three keys a query, its own included."),
    )
    out.part("torch-conventions.md", torch_table())


def figure(pictures: str, caption: str) -> str:
    """Return pictures with their caption, as one block of HTML."""
    return f'<figure class="wide" markdown="0">{pictures}<figcaption>{caption}</figcaption></figure>\n'


def grid(
    title: str, cells: Sequence[Sequence[tuple[str, str]]], rows: Iterable[str], columns: Iterable[str]
) -> str:
    """Return a grid; each cell has a class and a letter."""
    rows, columns = list(rows), list(columns)
    width = max(LEFT + CELL * len(columns) + 16, LEFT + 8 * len(title))
    height = TOP + 18 + CELL * len(rows) + 8
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [f'<svg class="picture" role="img" aria-label="{title}" {size}>', STRIPES]
    parts.append(f'<text x="0" y="14" font-weight="600">{title}</text>')
    for j, name in enumerate(columns):
        parts.append(_text(name, LEFT + CELL * j + CELL / 2, TOP + 10, "middle"))
    for i, name in enumerate(rows):
        y = TOP + 18 + CELL * i
        parts.append(_text(name, LEFT - 6, y + 17, "end"))
        for j, (kind, letter) in enumerate(cells[i]):
            x = LEFT + CELL * j
            parts.append(f'<rect class="{kind} edge" x="{x}" y="{y}" width="{CELL}" height="{CELL}"/>')
            if letter:
                parts.append(_text(letter, x + CELL / 2, y + 17, "middle"))
    return "".join([*parts, "</svg>"])


def _text(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="10.5">{text}</text>'


def _mask_cells(seen: torch.Tensor) -> list[list[tuple[str, str]]]:
    return [[("seen" if s else "hidden" if row.any() else "dead", "") for s in row] for row in seen]


def _names(word: str, count: int) -> list[str]:
    return [f"{word} {n}" for n in range(count)]


def _visible(q_len: int, kv_len: int, **options: int) -> torch.Tensor:
    query, key = torch.zeros(1, 1, q_len, 1), torch.zeros(1, 1, kv_len, 1)
    return stages.visible_positions(query, key, **options)


def polarity() -> str:
    """Return one mask in the three conventions."""
    seen = torch.tensor([True, True, False])
    kinds = ["seen" if s else "hidden" for s in seen]
    letters = {
        "True = attend (the contract)": ["T" if s else "F" for s in seen],
        "True = blocked": ["F" if s else "T" for s in seen],
        "additive": ["0" if s else "-∞" for s in seen],
    }
    return "".join(
        grid(t, [list(zip(kinds, row, strict=True))], ["query 0"], _names("k", 3))
        for t, row in letters.items()
    )


def causal(alignment: str) -> str:
    """Return a causal mask with more keys than queries."""
    seen = _visible(3, 5, offset=2 if alignment == "lower_right" else 0, right=0)
    return grid(alignment.replace("_", " "), _mask_cells(seen), _names("query", 3), _names("k", 5))


def dead() -> str:
    """Return a causal mask with more queries than keys, aligned lower right: its first rows are dead."""
    seen = (
        _visible(4, 4, offset=0)
        & torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1], [1, 1, 1, 1]]).bool()
    )
    return grid("a dead row", _mask_cells(seen), _names("query", 4), _names("k", 4))


def window() -> str:
    """Return a causal window."""
    return grid(
        "left = 2, causal",
        _mask_cells(_visible(6, 6, offset=0, left=2, right=0)),
        _names("query", 6),
        _names("k", 6),
    )


def grouped() -> str:
    """Return which key/value head each query head reads: by the stage, and by tiling."""
    heads = torch.arange(2.0).reshape(1, 2, 1, 1)
    orders = {
        "repeated (the contract)": stages.share_heads(heads, group=3),
        "tiled": heads.repeat(1, 3, 1, 1),
    }
    found = []
    for title, order in orders.items():
        read = [int(h) for h in order.flatten()]
        cells = [[("seen" if r == kv else "hidden", "") for r in read] for kv in range(2)]
        found.append(grid(title, cells, _names("kv head", 2), _names("h", 6)))
    return "".join(found)


def torch_table() -> str:
    """Return what the installed torch does, by trying it."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2)
    value = torch.tensor([1.0, 5.0]).reshape(1, 1, 2, 1).expand(1, 1, 2, 2)
    first = float(sdpa(query, key, value, attn_mask=torch.tensor([[True, False]]))[0, 0, 0, 0])
    aligned = float(sdpa(query, key, value, is_causal=True)[0, 0, 0, 0])
    nothing = float(sdpa(query, key, value, attn_mask=torch.tensor([[False, False]]))[0, 0, 0, 0])
    layer = torch.nn.MultiheadAttention(2, 1, bias=False, batch_first=True).eval()
    inputs = torch.tensor([[[0.0, 1.0], [9.0, 0.0]]])
    with torch.no_grad():
        alone = layer(inputs[:, :1], inputs[:, :1], inputs[:, :1])[0][0, 0]
        masked = layer(inputs[:, :1], inputs, inputs, attn_mask=torch.tensor([[False, True]]))[0][0, 0]
        empty = layer(inputs[:, :1], inputs, inputs, key_padding_mask=torch.tensor([[True, True]]))[0][0, 0]
    names = ("call", "True in a mask", "causal, 1 query and 2 keys", "a row that sees nothing")
    rows = [
        ("`scaled_dot_product_attention`", "may attend" if first == 1 else "blocked",
         "upper left" if aligned == 1 else "lower right", _number(nothing)),
        ("`nn.MultiheadAttention` (eval)", "blocked" if torch.allclose(alone, masked) else "may attend",
         "has no flag of its own: `is_causal` is a hint about `attn_mask`", _number(float(empty[0]))),
    ]  # fmt: skip
    return f"Tried with torch {torch.__version__} on the CPU when this site was built:\n\n" + table(
        names, rows
    )


def _number(value: float) -> str:
    return "NaN" if value != value else "zeros" if value == 0 else f"a finite number ({value:.3g})"
