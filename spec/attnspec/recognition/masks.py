"""What a mask means, what it is made of, and which shape it has, from what each query is seen to use.

For every form and every meaning, one mask is handed over, keys are moved one at a time, and the
rows that follow are compared with what the mask says. A form is taken only if every row agrees.

An inverted mask behaves exactly like one of the other convention, so behaviour alone never makes
`True = blocked` a convention: its own words or a declaration do; otherwise it is a question.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..conformance.caller import made_with
from . import documented
from .experiments import Probe, attempt, rows_changed
from .findings import How

# Meanings in the order in which they are preferred when several fit.
KINDS = (
    ("attend", "bool"),
    ("blocked", "bool"),
    ("additive", "float"),
    ("attend", "float"),
    ("attend", "int"),
    ("blocked", "float"),
    ("blocked", "int"),
)
FORMS = (None, "batch q_len kv_len", "q_len kv_len", "batch*heads q_len kv_len", "batch kv_len")
LETTERS = {"batch": "b", "heads": "h", "q_len": "q", "kv_len": "k"}

Form = tuple[str | None, tuple[str, str]]
See = Callable[[Tensor | None, dict[str, Any]], tuple[Tensor, Tensor, Tensor]]


def letters_of(forms: str) -> str:
    """Return the axes of declared mask shapes as the letters of a case."""
    words = {part for form in forms.split("|") for word in form.split() for part in word.split("*")}
    return "".join(letter for name, letter in LETTERS.items() if name in words)


def pattern(batch: int, q_len: int, kv_len: int, form: str | None, *, seed: int = 5) -> Tensor:
    """Return a mask in which every row sees a key and is refused one, under either meaning."""
    words = form or "batch q_len kv_len"
    sizes = (batch if "batch" in words else 1, 1, q_len if "q_len" in words else 1, kv_len)
    mask = torch.rand(sizes, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., 0], mask[..., 1] = True, False
    if mask.shape[0] > 1:
        mask[0, ..., -1], mask[1, ..., -1] = True, False
    return mask


def fits(see: See, mask: Tensor, changes: dict[str, Any], *, causal: bool) -> bool | None:
    """Return whether what is seen is what the mask says, and a mask that hides nothing does nothing.

    None if the call is refused.
    """
    found, error = attempt(lambda: see(mask, changes))
    if error is not None:
        return None
    seen, telling, output = found
    if (
        seen.shape[-1] != mask.shape[-1]
        or mask.shape[-2] not in (1, seen.shape[-2])
        or mask.shape[0] not in (1, seen.shape[0])
    ):
        return None
    plain, _ = attempt(lambda: see(None, changes))
    if plain is not None and plain[2].shape != output.shape:
        return None
    expected = mask.expand(seen.shape) if seen.dim() == 4 else mask[:, 0].expand(seen.shape)
    if causal:
        expected = expected & torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
    alive = expected.any(-1, keepdim=True)
    if not bool(((seen == expected) | ~telling | ~alive).all()):
        return False
    whole, _ = attempt(lambda: see(torch.ones_like(mask), changes)[2])
    return whole is not None and plain is not None and not bool(rows_changed(plain[2], whole).any())


def decide_masks(probe: Probe, see: See, *, sizes: tuple[int, int, int]) -> None:
    """Find out what a mask means and which shape it has, or ask."""
    if "padding" in probe.declaration.arguments:
        _decide_padding(probe, see, sizes)
    if "mask" not in probe.declaration.arguments:
        if "padding" in probe.declaration.arguments:
            probe.add("mask")
            probe.set(mask_axes="bk", mask_ranks=(4,))
        return
    found, running = _search(probe, see, sizes)
    if not found:
        _assume(probe, [form for form, _ in running])
        return
    kind = found[0][1]
    forms = [form for form, k in found if k == kind]
    # What the contract hands over, taken and misread, is no other convention: the clauses say why.
    if (None, kind) in running:
        forms = [
            form
            for form in FORMS
            if form in forms or (form in (None, "q_len kv_len") and (form, kind) in running)
        ]
    if None in forms and "q_len kv_len" in forms and _cuts_the_batch(probe, see, kind, sizes):
        forms = [form for form in forms if form is not None]
    _set_forms(probe, see, forms, kind, sizes)
    _say(probe, kind)


def _search(probe: Probe, see: See, sizes: tuple[int, int, int]) -> tuple[list[Form], list[Form]]:
    """Return every form and meaning that fits, the preferred meaning first, and those that at least run."""
    declared, causal = probe.declaration, probe.space.causal == "always"
    kinds = [k for k in KINDS if declared.mask in (None, k[0]) and declared.mask_dtype in (None, k[1])]
    forms = (declared.mask_shape,) if declared.mask_shape else FORMS
    if "mask" in made_with(declared) and not declared.mask_shape:
        forms = ("q_len kv_len",)  # A mask given at construction knows no batch.
    arguments = {name: word for name, word in declared.arguments.items() if name != "padding"}
    found, running = [], []
    for kind in kinds:
        for form in forms:
            changes = {"mask": kind[0], "mask_dtype": kind[1], "mask_shape": form, "arguments": arguments}
            fit = fits(see, pattern(*sizes, form), changes, causal=causal)
            if fit:
                found.append((form, kind))
            if fit is not None:
                running.append((form, kind))
        if found:
            break
    return found, running


def _cuts_the_batch(probe: Probe, see: See, kind: tuple[str, str], sizes: tuple[int, int, int]) -> bool:
    """Return whether rank 4 is refused as soon as there are more sequences than positions.

    `mask[:q_len, :kv_len]` is meant for rank 2; at rank 4 it cuts the batch, which a small one does not show.
    """
    _, q_len, kv_len = sizes
    changes = {"mask": kind[0], "mask_dtype": kind[1], "mask_shape": None}
    many = pattern(max(q_len, kv_len) + 1, q_len, kv_len, None)
    arguments = {name: word for name, word in probe.declaration.arguments.items() if name != "padding"}
    _, refused = attempt(lambda: see(many, {**changes, "arguments": arguments}))
    return refused is not None


def _set_forms(
    probe: Probe, see: See, forms: list[str | None], kind: tuple[str, str], sizes: tuple[int, int, int]
) -> None:
    """Write down the shapes that it takes."""
    meaning, dtype = kind
    causal = probe.space.causal == "always"
    probe.declare(mask=meaning, mask_dtype=None if dtype == "bool" or meaning == "additive" else dtype)
    if forms[0] is None:
        wide = pattern(*sizes, None).expand(-1, probe.heads, -1, -1)
        arguments = {name: word for name, word in probe.declaration.arguments.items() if name != "padding"}
        per_head = fits(
            see, wide, {"mask": meaning, "mask_dtype": dtype, "arguments": arguments}, causal=causal
        )
        two = "q_len kv_len" in forms
        probe.set(mask_axes="bqk" if per_head is None else "bhqk", mask_ranks=(4, 2) if two else (4,))
        _compare_words(probe, takes_three="batch q_len kv_len" in forms)
        return
    named = [form for form in forms if form]
    if "batch q_len kv_len" in named:
        named = [form for form in named if form != "q_len kv_len"]
    shape = " | ".join(named)
    probe.declare(mask_shape=shape)
    axes = letters_of(shape) + ("b" if "padding" in probe.declaration.arguments else "")
    probe.set(mask_axes="".join(a for a in "bhqk" if a in axes), mask_ranks=(4,))
    probe.find("mask", f"of shape {shape}", "probed", "mask_shape=<axes>")


def _compare_words(probe: Probe, *, takes_three: bool) -> None:
    """Ask where the words promise a mask of rank 3 and the code cannot take one."""
    words = documented.mask_axes(probe.target)
    if words and not takes_three:
        probe.ask(
            "mask.broadcast",
            f"its own words give the mask the axes {words!r}, which raises or meets the head axis; it "
            "was checked with rank 4."
            f" If rank 3 is meant, --declare mask_shape={words!r} shows where it goes wrong; if rank 4 "
            "is meant, the words are wrong",
            f'mask_shape="{words}"',
        )


def _assume(probe: Probe, running: list[str | None]) -> None:
    """No reading fits: the clauses will show how, with the first form that the code takes without raising."""
    declared = probe.declaration
    probe.declare(mask=declared.mask or "attend")
    if declared.mask_shape is None and running and running[0] is not None:
        probe.declare(mask_shape=running[0])
    declared = probe.declaration
    if declared.mask_shape:
        probe.set(mask_axes=letters_of(declared.mask_shape), mask_ranks=(4,))
    how: How = "declared" if probe.stated.mask else "assumed"
    probe.find(
        "mask",
        f"True = {probe.declaration.mask}; no meaning or shape fits what the code does with it",
        how,
        "mask=blocked",
    )


def _say(probe: Probe, kind: tuple[str, str]) -> None:
    """Print the meaning, or ask where a bug would look the same."""
    meaning, dtype = kind
    words = documented.polarity(probe.target)
    what = {"bool": "True", "int": "1", "float": "1.0"}[dtype]
    if probe.stated.mask is not None:
        probe.find("mask", f"{what} = {meaning}" if meaning != "additive" else "additive", "declared")
        return
    if meaning == "additive":
        probe.find(
            "mask",
            "a float that is added: 0 where a query may attend, -inf elsewhere; a boolean one would be "
            "added as 0 and 1",
            "probed",
            "mask=attend",
        )
        if words is not None:
            probe.ask("mask.polarity", f"its own words say what True means ({words}), but the mask is "
                                       "added to the scores, so True only adds 1:"
                      " is an additive mask meant? If it is, declare it; if not, the mask does nothing",
                      "mask=additive")  # fmt: skip
        return
    said = "may attend" if meaning == "attend" else "blocked"
    if words in (None, meaning) and (meaning == "attend" or words == "blocked"):
        how: How = "documented" if words else "probed"
        probe.find(
            "mask",
            f"{what} = {said}" + (", as its own words say" if words else ""),
            how,
            f"mask={'blocked' if meaning == 'attend' else 'attend'}",
        )
        return
    probe.find(
        "mask", f"{what} = {said} (declare it with --declare mask={meaning})", "probed", f"mask={meaning}"
    )
    other = "may attend" if meaning == "blocked" else "blocked"
    although = f" although its own words say that {what} = {other}" if words not in (None, meaning) else ""
    probe.ask(
        "mask.polarity",
        f"the mask behaves as {what} = {said}{although}: is that meant? If it is, declare it and the "
        "other clauses stand as reported;"
        f" if {what} = {other} is meant, the mask is inverted and every masked output is wrong",
        f"mask={meaning}",
    )  # fmt: skip


def _decide_padding(probe: Probe, see: See, sizes: tuple[int, int, int]) -> None:
    """Find out what True means in a mask over `batch kv_len` that has an argument of its own."""
    mask = pattern(*sizes, "batch kv_len")
    causal = probe.space.causal == "always"
    name = probe.declaration.arguments["padding"]
    options = (probe.declaration.padding,) if probe.declaration.padding else ("attend", "blocked")
    arguments = {n: word for n, word in probe.declaration.arguments.items() if n != "mask"}
    meaning = next(
        (m for m in options if fits(see, mask, {"padding": m, "arguments": arguments}, causal=causal)), None
    )
    by_name = "pad" in name
    probe.declare(padding=meaning or ("blocked" if by_name else "attend"))
    if meaning is None:
        probe.find(name, "no meaning fits what the code does with it", "assumed", "padding=blocked")
    elif meaning == "blocked" and by_name:
        probe.find(name, "True = padding, as it is called", "by name", "padding=attend")
    else:
        probe.find(
            name,
            f"True = {'may attend' if meaning == 'attend' else 'blocked'}",
            "probed",
            f"padding={meaning}",
        )
        if meaning == "blocked" and probe.stated.padding is None:
            probe.ask(
                "mask.polarity",
                f"{name} behaves as True = blocked: is that meant? If True = may attend is meant, it is "
                "inverted",
                "padding=blocked",
            )
    probe.add("mask")
