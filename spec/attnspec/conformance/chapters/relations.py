"""Relations of a layer whose weights are not known: what must hold whatever its parameters are.

There is no exact result to compare with, so the module is its own measure: the same module in
float32 and float64 differs by float32's rounding, and a relation that holds in real numbers is kept
in float64 to a small part of that difference. One that does not hold misses by the same amount in both.
"""

import copy

import torch

from .. import judge
from ..check import check
from ..failures import NotApplicable, Violation
from ..recipes import Recipe

# float64 rounds 2**29 times finer than float32; a relation adds a few operations, sums in another order.
FINER = 2.0**-16
SMALL = {
    "lengths": ((4, 4), (5, 5), (3, 3)),
    "widths": ((6, 6), (4, 4)),
    "values": ("normal",),
    "dtype": ("float32",),
    "batch": (2, 3),
}


class _Twin:
    """One module in two precisions, on one set of inputs."""

    def __init__(self, subject, case):
        if subject.space.has("parameters"):
            raise NotApplicable("its weights are known, and the core inside it was checked instead")
        if "float64" not in subject.space.dtypes or "float32" not in subject.space.dtypes:
            raise NotApplicable("its weights are not known, and it does not run in two precisions")
        self.narrow = subject.build_any(case)
        self.wide = copy.copy(self.narrow)
        self.wide.module = copy.deepcopy(self.narrow.module).double()
        self.inputs = case.layer_inputs()

    def run(self, inputs):
        """Return the output in float64, and how far float32 is from it at most."""
        wide = self.wide.run(inputs.to(torch.float64)).output.detach()
        narrow = self.narrow.run(inputs).output.detach()
        return wide, (narrow.double() - wide).abs().nan_to_num(0.0).max() * FINER

    def require(self, got, expected, *, what, rows=None):
        """Raise a `Violation` unless two runs agree to a small part of float32's rounding."""
        (a, first), (b, second) = got, expected
        judge.require_within(a, b, torch.maximum(first, second).expand_as(b), what=what, rows=rows)


def _order(case):
    return torch.arange(case.q_len).roll(1)


@check("shape.output", Recipe(SMALL), on="layer")
def check_shape(subject, case):
    twin = _Twin(subject, case)
    judge.require_shape(twin.run(twin.inputs)[0], (case.batch, case.q_len, case.d_model))


@check(
    "value.batch_independent",
    Recipe({**SMALL, "mask": (None, "random"), "causal": (False, True)}),
    on="layer",
)
def check_batch(subject, case):
    twin = _Twin(subject, case)
    together, noise = twin.run(twin.inputs)
    for b in range(case.batch):
        alone = twin.inputs.map_tensors(
            lambda name, t, b=b: t[b : b + 1] if t.dim() > 2 and t.shape[0] > 1 else t
        )
        twin.require(
            twin.run(alone),
            (together[b : b + 1], noise),
            what="a sample alone gives another output than in a batch",
        )


@check("value.permute_keys", Recipe(SMALL), on="layer")
def check_permute(subject, case):
    """Positions in another order: the outputs come in that order, and are the same."""
    if case.causal:
        raise NotApplicable("it is causal: the order of positions matters")
    twin = _Twin(subject, case)
    order = _order(case)
    moved = twin.inputs.map_tensors(
        lambda name, t: t[:, order] if name in ("query", "key", "value") and t.shape[1] == case.q_len else t
    )
    plain, noise = twin.run(twin.inputs)
    twin.require(
        twin.run(moved),
        (plain[:, order], noise),
        what="positions in another order give other outputs, without any mask",
    )


@check("causal.future", Recipe({**SMALL, "causal": (True,)}), on="layer")
def check_future(subject, case):
    twin = _Twin(subject, case)
    if case.sources != "self":
        raise NotApplicable("keys come from elsewhere")
    cut = case.q_len // 2
    query = twin.inputs.query.clone()
    query[:, cut:] = query[:, cut:] * -2 + 1
    before, noise = twin.run(twin.inputs)
    after, more = twin.run(twin.inputs.replace(query=query))
    twin.require(
        (after[:, :cut], more), (before[:, :cut], noise), what="a later position changes an earlier output"
    )


@check("causal.off", Recipe({**SMALL, "lengths": ((4, 4), (3, 3)), "causal": (False,)}), on="layer")
def check_off(subject, case):
    twin = _Twin(subject, case)
    name = "query" if case.sources == "self" else "key"
    for position in (0, -1):
        tensor = getattr(twin.inputs, name).clone()
        tensor[:, position] = tensor[:, position] * -2 + 1
        (after, _), (before, _) = twin.run(twin.inputs.replace(**{name: tensor})), twin.run(twin.inputs)
        deaf = (after == before).all(-1)
        if bool(deaf.any()):
            raise Violation(
                "without the causal flag a query does not see every key", got="no change", expected="a change"
            )


@check("causal.future", Recipe({**SMALL, "lengths": ((4, 4),), "causal": (True,)}), on="layer")
def check_beyond_buffer(subject, case):
    """Longer than the buffer that holds the causal mask: it raises, or the future stays hidden."""
    from ..failures import SubjectError

    limited = "max_len" in (subject.declaration.new or "")
    if not limited and subject.space.max_len is None:
        raise NotApplicable("no buffer limits its length")
    length = (subject.space.max_len or 8) + 3
    longer = case.replace(q_len=length, kv_len=length, sources="self")
    inputs = longer.layer_inputs()
    weights = subject.holdable(inputs.weights) if subject.space.has("parameters") else inputs.weights
    try:
        layer = subject.build(weights, max_len=length - 3)
        before = layer.run(inputs).output
    except SubjectError:
        return
    query = inputs.query.clone()
    query[:, -1] = query[:, -1] * -2 + 1
    after = layer.run(inputs.replace(query=query)).output
    what = f"with {length} positions, more than its buffer holds, the future is no longer hidden"
    judge.require_equal(after[:, :-1], before[:, :-1], what=what)


@check(
    "mask.irrelevant.finite",
    Recipe(
        {**SMALL, "mask": ("padding", "last_key"), "mask_axes": ("bk", "bqk", "k"), "causal": (False, True)}
    ),
    on="layer",
)
def check_irrelevant(subject, case):
    """Change a position that nobody may look at: no other position's output follows."""
    twin = _Twin(subject, case)
    mask = twin.inputs.mask
    whole = mask if mask.dim() == 4 else mask[None, None]
    hidden = ~whole.any(2).any(1)[..., None].expand(case.batch, -1, 1)
    name = "query" if case.sources == "self" else "key"
    tensor = getattr(twin.inputs, name)
    changed = {name: torch.where(hidden, tensor * -3 + 1, tensor)}
    if twin.inputs.value is not None:
        changed["value"] = torch.where(hidden, twin.inputs.value * -3 + 1, twin.inputs.value)
    rows = ~hidden if case.sources == "self" else None
    what = "a position that the mask forbids changes the output of another"
    twin.require(twin.run(twin.inputs.replace(**changed)), twin.run(twin.inputs), what=what, rows=rows)


@check(
    "mask.all_true",
    Recipe({**SMALL, "mask": ("all",), "mask_axes": ("bqk", "bk", "qk"), "causal": (False, True)}),
    on="layer",
)
def check_all_true(subject, case):
    twin = _Twin(subject, case)
    what = "a mask that allows everything changes the output"
    twin.require(twin.run(twin.inputs), twin.run(twin.inputs.replace(mask=None)), what=what)


@check(
    "mask.value",
    Recipe({**SMALL, "mask": ("padding", "left_padding"), "mask_axes": ("bk",), "causal": (False,)}),
    on="layer",
)
def check_two_masks(subject, case):
    """A mask over positions and one over keys, each in its own argument: both hold."""
    if not {"mask", "padding"} <= set(subject.declaration.arguments) or not subject.space.has("mask_q"):
        raise NotApplicable("it takes one mask")
    inputs = subject.layer_inputs(case)
    rows, columns = torch.arange(case.q_len)[:, None], torch.arange(inputs.key_input.shape[1])[None, :]
    both = inputs.mask.expand(case.batch, 1, case.q_len, columns.shape[1]) & ((columns - rows) % 3 != 1)
    judge.judge_layer(subject, inputs.replace(mask=both), what="two masks together do not mean both")


@check(
    "mask.polarity",
    Recipe({**SMALL, "mask": ("padding", "single"), "mask_axes": ("bk", "bqk"), "causal": (False,)}),
    on="layer",
)
def check_polarity(subject, case):
    """A position that everybody may look at, changed: somebody's output follows."""
    twin = _Twin(subject, case)
    mask = twin.inputs.mask if twin.inputs.mask.dim() == 4 else twin.inputs.mask[None, None]
    shown = mask.all(2).all(1)[..., None].expand(case.batch, -1, 1)
    if case.sources != "self" or not bool(shown.any()) or case.q_len < 2:
        raise NotApplicable("no position is visible to all")
    changed = twin.inputs.replace(query=torch.where(shown, twin.inputs.query * -3 + 1, twin.inputs.query))
    (after, _), (before, _) = twin.run(changed), twin.run(twin.inputs)
    deaf = (after == before).all(-1, keepdim=True) & ~shown & shown.any(1, keepdim=True)
    if bool(deaf.any()):
        raise Violation(
            "a position that everybody may look at changes nobody's output: the mask is inverted",
            got="no change",
            expected="a change",
        )


@check("determinism.repeat", Recipe({**SMALL, "mask": (None, "random"), "causal": (False, True)}), on="layer")
def check_repeat(subject, case):
    twin = _Twin(subject, case)
    first = twin.narrow.run(twin.inputs).output
    torch.manual_seed(case.seed)
    judge.require_equal(
        twin.narrow.run(twin.inputs).output, first, what="two equal calls of a module give different outputs"
    )


@check(
    "state.inputs_unchanged", Recipe({**SMALL, "mask": (None, "random"), "causal": (False, True)}), on="layer"
)
def check_inputs(subject, case):
    twin = _Twin(subject, case)
    copies = {name: (tensor, tensor.clone()) for name, tensor in twin.inputs.tensors().items()}
    twin.narrow.run(twin.inputs)
    for name, (tensor, before) in copies.items():
        judge.require_equal(tensor, before, what=f"the call writes to its {name}")


@check("state.train_eval", Recipe({**SMALL, "mask": (None, "random"), "causal": (False, True)}), on="layer")
def check_train_eval(subject, case):
    twin = _Twin(subject, case)
    in_eval = twin.run(twin.inputs)
    for layer in (twin.narrow, twin.wide):
        layer.module.train()
    twin.require(twin.run(twin.inputs), in_eval, what="train and eval mode differ, without dropout")


@check("dtype.output", Recipe({**SMALL, "dtype": ("float32", "bfloat16", "float16")}), on="layer")
def check_dtype(subject, case):
    if subject.space.has("parameters"):
        raise NotApplicable("its weights are known")
    got = subject.build_any(case).run(case.layer_inputs()).output
    if got.dtype != case.torch_dtype:
        raise Violation(
            "the output does not have the dtype of the query",
            got=str(got.dtype),
            expected=str(case.torch_dtype),
        )
