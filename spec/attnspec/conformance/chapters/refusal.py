"""Chapter refusal: what is not supported raises; numbers that ignore an argument never come back."""

import torch

from .. import judge
from ..check import check
from ..failures import NotApplicable, SubjectError, Violation
from ..recipes import Recipe

PLAIN = {"lengths": ((3, 5), (4, 4)), "batch": (2,), "heads": ((3, 3), (2, 2)), "causal": (False,)}


def _two_at_least(size):
    """Raise `NotApplicable` where a wrong size is 1 or 0: an axis of size 1 is broadcast, as by einsum."""
    if size < 2:
        raise NotApplicable("an axis of size 1 is broadcast: it is no wrong length")


def _refuses(subject, inputs, *, what):
    def attempt():
        return subject.run(inputs)

    return judge.require_raises(attempt, what=what, got="an output")


@check("refusal.mask_rank", Recipe(PLAIN))
def check_mask_rank(subject, case):
    """A rank-3 mask could mean batch or heads; broadcasting picks heads without a word."""
    case = case.replace(batch=case.heads)
    inputs = case.core_inputs()
    mask = torch.rand(case.heads, case.q_len, case.kv_len, generator=case.generator(4)) < 0.7
    mask[..., 0] = True
    _refuses(
        subject,
        inputs.replace(mask=mask),
        what="a mask of rank 3 is accepted: batch or heads is anybody's guess",
    )


@check("refusal.mask_dtype", Recipe(PLAIN))
def check_mask_dtype(subject, case):
    inputs = case.core_inputs()
    mask = torch.rand(case.q_len, case.kv_len, generator=case.generator(4)) < 0.7
    for dtype in (torch.float32, torch.int64):
        _refuses(
            subject,
            inputs.replace(mask=mask.to(dtype)),
            what=f"a mask of {dtype} is accepted; a float belongs in bias",
        )


@check("refusal.mask_shape", Recipe({**PLAIN, "lengths": ((3, 5), (4, 6), (2, 9))}))
def check_mask_shape(subject, case):
    inputs = case.core_inputs()
    q_len, kv_len = inputs.query.shape[2], inputs.key.shape[2]
    _two_at_least(min(q_len, kv_len - 2))
    for name, shape in (
        ("short", (q_len, kv_len - 2)),
        ("long", (q_len, kv_len + 1)),
        ("high", (q_len + 1, kv_len)),
    ):
        mask = torch.ones(shape, dtype=torch.bool)
        _refuses(
            subject,
            inputs.replace(mask=mask),
            what=f"a {name} mask of shape {shape} is accepted for {q_len} queries and {kv_len} keys",
        )


@check("refusal.kv_heads", Recipe({**PLAIN, "heads": ((3, 3), (5, 5))}))
def check_kv_heads(subject, case):
    inputs = case.core_inputs()
    kept = case.heads - 1
    _two_at_least(kept)
    _refuses(
        subject, inputs.replace(key=inputs.key[:, :kept], value=inputs.value[:, :kept]),
        what=f"{kept} key/value heads are accepted for {case.heads} query heads",
    )  # fmt: skip


@check("refusal.widths", Recipe({**PLAIN, "widths": ((5, 5), (4, 4), (8, 8))}))
def check_widths(subject, case):
    inputs = case.core_inputs()
    _two_at_least(case.d_k - 1)
    _refuses(
        subject,
        inputs.replace(key=inputs.key[..., :-1]),
        what="keys of another width than the queries are accepted",
    )


@check("refusal.lengths", Recipe({**PLAIN, "lengths": ((3, 5), (4, 6), (5, 9))}))
def check_lengths(subject, case):
    inputs = case.core_inputs()
    _two_at_least(case.kv_len - 2)
    _refuses(
        subject, inputs.replace(value=inputs.value[:, :, :-2]), what="fewer values than keys are accepted"
    )


@check("refusal.mixed_dtypes", Recipe(PLAIN))
def check_mixed(subject, case):
    inputs = case.core_inputs()
    other = torch.float32 if case.torch_dtype == torch.float64 else torch.float64
    _refuses(
        subject,
        inputs.replace(key=inputs.key.to(other)),
        what=f"a {str(other).removeprefix('torch.')} key beside {case.dtype} queries is accepted",
    )


@check("refusal.says_why", Recipe(PLAIN))
def check_says_why(subject, case):
    """The message of a refusal names a number of the sizes that do not fit."""
    inputs = case.core_inputs()
    _two_at_least(case.d_k - 1)
    try:
        subject.run(inputs.replace(key=inputs.key[..., :-1]))
    except SubjectError as error:
        if not any(str(size) in error.message for size in (case.d_k, case.d_k - 1)):
            raise Violation(
                "a refusal does not name the sizes", got=error.message or error.kind, expected="both numbers"
            ) from error


@check("refusal.sizes", Recipe({"heads": ((3, 3), (2, 2), (4, 4)), "lengths": ((3, 3),)}), on="layer")
def check_layer_sizes(subject, case):
    """`d_model` that heads do not divide is refused when the layer is made, or when it is called."""
    d_model = case.heads * case.d_k + 1
    if d_model % case.heads == 0:
        d_model += 1

    def attempt():
        module = subject.construct(
            d_model=d_model,
            heads=case.heads,
            kv_heads=case.heads,
            d_k=d_model // case.heads,
            d_v=d_model // case.heads,
        )
        found = subject.slots.read(module, subject.layer_inputs(case).weights)
        if any(t.numel() == 0 for t in found.values()):
            raise ValueError("empty parameters")
        x = torch.randn(1, 3, d_model)
        from ..caller import LAYER_AXES, Caller

        caller = Caller(subject.declaration, {**subject.namespace, "heads": case.heads}, axes=LAYER_AXES)
        tensors = {
            "query": x,
            **(
                {"key": x, "value": x}
                if "separate" in subject.space.sources
                else {"key": x}
                if "memory" in subject.space.sources
                else {}
            ),
        }
        output = caller(
            module, tensors, subject.layer_inputs(case).replace(mask=None, causal=False), d=1
        ).output
        judge.require_shape(output, (1, 3, d_model))

    try:
        attempt()
    except (SubjectError, Violation, ValueError, RuntimeError):
        return
    raise Violation(
        f"d_model={d_model} is accepted for {case.heads} heads", got="an output", expected="an exception"
    )
