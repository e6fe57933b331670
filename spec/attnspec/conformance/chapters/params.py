"""Chapter params: a layer's parameters, their places and their layout."""

from itertools import combinations

import torch

from .. import judge
from ..check import check
from ..failures import NotApplicable, Violation
from ..recipes import Recipe

SQUARE = {"lengths": ((3, 3), (4, 4), (3, 5)), "values": ("normal",)}


@check("params.round_trip", Recipe(SQUARE), on="layer")
def check_round_trip(subject, case):
    """Canonical weights go in and come out the same."""
    weights = subject.layer_inputs(case).weights
    layer = subject.build(weights)
    for name, tensor in subject.slots.read(layer.module, weights).items():
        if getattr(weights, name) is None:
            continue
        judge.require_equal(
            tensor, getattr(weights, name), what=f"{name} does not come back as it was loaded"
        )


@check(
    "params.head_major",
    Recipe({**SQUARE, "heads": ((3, 3), (2, 2), (4, 4), (4, 2), (6, 2)), "widths": ((5, 5), (2, 2), (7, 7))}),
    on="layer",
)
def check_head_major(subject, case):
    """Silence all heads but one through W_o; the output must be that head's alone."""
    if "W_o" not in subject.slots.names:
        raise NotApplicable("it has no output projection to silence heads with")
    inputs = subject.layer_inputs(case)
    width = inputs.weights.d_v
    for head in {0, case.heads - 1}:
        keep = torch.zeros(case.heads * width, dtype=case.torch_dtype)
        keep[head * width : (head + 1) * width] = 1
        changed = inputs.weights.replace(W_o=inputs.weights.W_o * keep)
        judge.judge_layer(
            subject,
            inputs.replace(weights=changed),
            what=f"rows h*d_k to (h+1)*d_k do not belong to head h (head {head})",
        )


@check("params.each_matters", Recipe({**SQUARE, "lengths": ((4, 4), (5, 5))}), on="layer")
def check_each_matters(subject, case):
    """Change one canonical tensor; the output follows as the exact one does."""
    inputs = subject.layer_inputs(case)
    held = {n: t for n, t in inputs.weights.tensors().items() if n in subject.slots.names}
    for number, (name, tensor) in enumerate(held.items()):
        step = torch.randn(tensor.shape, generator=case.generator(20 + number), dtype=torch.float64) * 0.5
        weights = inputs.weights.replace(**{name: tensor + step.to(tensor.dtype)})
        judge.judge_layer(
            subject,
            inputs.replace(weights=weights),
            what=f"the output does not follow a change of {name} alone",
        )


@check("params.output_projection", Recipe(SQUARE), on="layer")
def check_output_projection(subject, case):
    if "W_o" not in subject.slots.names:
        raise Violation(
            "the layer has no output projection W_o: its heads are laid side by side and never mixed",
            got="no W_o",
            expected="d_model heads*d_v",
        )
    inputs = subject.layer_inputs(case)
    weights = inputs.weights.replace(W_o=torch.zeros_like(inputs.weights.W_o))
    judge.judge_layer(
        subject, inputs.replace(weights=weights), what="with W_o = 0 the output is not the output bias"
    )


@check(
    "params.output_projection", Recipe({**SQUARE, "heads": ((1, 1),), "widths": ((4, 4), (6, 6))}), on="layer"
)
def check_output_projection_of_one_head(subject, case):
    """One head alone is projected too."""
    sizes = {name: getattr(case, name) for name in ("d_model", "heads", "kv_heads", "d_k", "d_v")}
    if subject.slots.lacks(subject.construct(**sizes), "W_o"):
        raise Violation(
            "with one head the layer has no output projection W_o",
            got="no W_o",
            expected="d_model heads*d_v",
        )


@check("params.complete", Recipe(SQUARE), on="layer")
def check_complete(subject, case):
    """Every projection is a registered parameter: in the state dict, and moved by `.to()`."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    held = sum(p.numel() for p in layer.module.parameters())
    needed = sum(t.numel() for n, t in inputs.weights.tensors().items() if n in subject.slots.names)
    if held < needed:
        raise Violation(
            "some projections are not registered parameters",
            got=f"{held} numbers",
            expected=f"{needed} numbers",
        )
    saved = sum(t.numel() for t in layer.module.state_dict().values())
    if saved < needed:
        raise Violation(
            "some projections are not in the state dict", got=f"{saved} numbers", expected=f"{needed} numbers"
        )


@check("params.no_extra", Recipe(SQUARE), on="layer")
def check_no_extra(subject, case):
    """No parameter beside the canonical ones."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    held = {n: p.numel() for n, p in layer.module.named_parameters()}
    needed = sum(t.numel() for n, t in subject.slots.read(layer.module, inputs.weights).items())
    if sum(held.values()) > needed:
        paths = {p.split(".*")[0] for p in subject.slots.paths}
        extra = [n for n in held if not any(n == p or n.startswith(p) for p in paths)]
        raise Violation(
            f"the layer has parameters beside its projections: {', '.join(extra) or 'shared storage'}",
            got=f"{sum(held.values())} numbers", expected=f"{needed} numbers",
        )  # fmt: skip


@check("params.sizes", Recipe({**SQUARE, "heads": ((1, 1), (2, 2), (3, 3), (6, 6), (4, 2))}), on="layer")
def check_sizes(subject, case):
    """The number of parameters does not depend on the number of heads."""
    weights = subject.layer_inputs(case).weights
    layer = subject.build(weights)
    for name, tensor in subject.slots.read(layer.module, weights).items():
        if getattr(weights, name) is None:
            continue
        judge.require_shape(tensor, tuple(getattr(weights, name).shape), what=f"parameter {name}")


@check("params.trainable", Recipe(SQUARE), on="layer")
def check_trainable(subject, case):
    layer = subject.build(subject.layer_inputs(case).weights)
    frozen = [n for n, p in layer.module.named_parameters() if not p.requires_grad]
    if frozen:
        raise Violation(
            f"the parameter {frozen[0]} does not require a gradient", got="frozen", expected="trainable"
        )


def _new_matrices(subject, case):
    """Return the projections of a module just constructed, in pairs of one shape."""
    sizes = {name: getattr(case, name) for name in ("d_model", "heads", "kv_heads", "d_k", "d_v")}
    torch.manual_seed(case.seed)
    module = subject.construct(**sizes)
    if subject.slots.lacks(module, "W_o"):
        raise NotApplicable("with these sizes it has no output projection")
    like = subject.layer_inputs(case).weights
    found = {n: t for n, t in subject.slots.read(module, like).items() if n.startswith("W_")}
    same = [(a, b) for a, b in combinations(found, 2) if found[a].shape == found[b].shape]
    return module, like, found, same


@check("params.distinct", Recipe(SQUARE), on="layer")
def check_distinct(subject, case):
    """What is written to one projection stays out of the others."""
    module, like, found, same = _new_matrices(subject, case)
    for name in found:
        marked = like.replace(**{n: torch.full_like(t, float(n == name)) for n, t in like.tensors().items()})
        subject.slots.write(module, marked.replace(**{name: torch.full_like(getattr(like, name), 2.0)}))
        held = subject.slots.read(module, like)
        for other in [b if a == name else a for a, b in same if name in (a, b)]:
            if bool((held[other] == 2.0).all()) or not bool((held[name] == 2.0).all()):
                raise Violation(f"{name} and {other} are one parameter", got="one", expected="two")


@check("params.start_apart", Recipe(SQUARE), on="layer")
def check_start_apart(subject, case):
    """Projections that start out equal are one copied, or drawn from one seed."""
    _, _, found, same = _new_matrices(subject, case)
    for a, b in same:
        if found[a].numel() > 1 and torch.equal(found[a], found[b]) and bool((found[a] != 0).any()):
            raise Violation(
                f"{a} and {b} start out equal: one was copied, or both are drawn from one seed",
                got="equal",
                expected="different numbers",
            )
