"""Which known mistake is it? Named only where it explains every output, on several inputs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..conformance.cases import Case
from ..conformance.core_view import CoreView
from ..conformance.layer_subject import LayerSubject
from ..conformance.space import Space
from .bank import BANK
from .observe import Observation, Observer, tells_apart, wrong_ones
from .record import Fingerprint, Match
from .variants import Plan, plans, richer, telling, without_one

_ENOUGH = 3
_FEATURES = {
    "bias": "a bias",
    "softcap": "a softcap",
    "window": "a window",
    "scale": "an explicit scale",
    "mask": "a mask",
    "causal": "causal",
    "kv_heads": "grouped heads",
}
_NAMES = {f.name: f for f in BANK}

WRITTEN = Fingerprint(
    "state.input_written",
    "an input is changed in place",
    "x = x * scale instead of x *= scale, masked_fill instead of masked_fill_",
)
RANDOM = Fingerprint(
    "output.random",
    "two equal calls give different outputs: dropout outside of training, or memory that was never written",
    "F.dropout(weights, p, training=self.training); fill buffers before they are read",
)
DROPOUT = Fingerprint(
    "dropout.in_eval",
    "dropout is active in eval mode",
    "F.dropout(weights, self.p, training=self.training)",
    "dropout",
)
DTYPE = Fingerprint(
    "output.dtype",
    "the numbers are right, but the output has another dtype than the query",
    "output.to(query.dtype)",
)


@torch.no_grad()
def identify(subject: Any, case: Case, *, layer: bool) -> Match | None:
    """Name the known mistake that a subject makes.

    The case is only a hint: it says which features were in play. Other cases with these features are
    run, features that the failure does not need are taken away, and every known mistake is held
    against all outputs. A mistake is named if it alone explains all of them, or if the others that do
    are declared special cases of it.

    Args:
        subject: A core, a layer, or the core inside a layer.
        case: That failed; it may be as degenerate as shrinking leaves it.
        layer: Whether the case is one of a layer.

    Returns:
        The mistake and on how many inputs it was seen, or None.
    """
    if isinstance(subject, CoreView):
        subject, layer = subject.layer, True
    observe = Observer(subject, layer=layer)
    if layer and case.sources == "self" and case.q_len != case.kv_len:
        case = case.replace(sources=subject.space.sources[-1])
    earlier: list[Observation] = []
    for plan, hint in _attempts(case, subject.space):
        variants = plan(hint)
        seen = _observe(observe, variants)
        if len(wrong_ones(seen)) < 2:
            earlier += seen
            continue
        if not observe.repeats(variants[0]):
            return Match(RANDOM, 2)
        # The most telling cases that fail decide: closer ones are degenerate, and many mistakes fit those.
        return _best(observe, plan, hint, earlier)
    return _behaviour(observe, case)


def _attempts(case: Case, space: Space) -> Iterator[tuple[Plan, Case]]:
    """Yield ways to vary the case, then the case with more features."""
    for plan in plans(case, space):
        yield plan, case
    for more in richer(case, space):
        yield next(plans(more, space)), more


def _best(observe: Observer, plan: Plan, case: Case, earlier: Sequence[Observation]) -> Match | None:
    """Explain the smallest call that fails, then one with a mask on every axis, then the one in hand."""
    reduced = _reduce(observe, plan, case)
    hints = [reduced]
    if reduced.mask is not None:
        hints.append(reduced.replace(mask_axes=observe.subject.space.mask_axes, mask_rank=4))
    if reduced != case:
        hints.append(case)
    for hint in hints:
        found = _explain(observe, plan, hint, earlier)
        if found is not None:
            return found
    return None


def _observe(observe: Observer, cases: Sequence[Case]) -> list[Observation]:
    """Return what the cases give, until enough of it is wrong, or half of it is right throughout."""
    found: list[Observation] = []
    for number, case in enumerate(cases):
        if number >= _ENOUGH and not wrong_ones(found):
            break
        seen = observe(case)
        if seen is not None:
            found.append(seen)
        if len(wrong_ones(found)) >= _ENOUGH:
            break
    return found


def _reduce(observe: Observer, plan: Plan, case: Case) -> Case:
    """Take away the features that the failure does not need."""
    for _ in range(8):
        for smaller in without_one(case, observe.subject.space):
            seen = [observe(variant) for variant in plan(smaller)[:2]]
            if len(wrong_ones(seen)) == 2:
                case = smaller
                break
        else:
            return case
    return case


def _explain(observe: Observer, plan: Plan, case: Case, earlier: Sequence[Observation]) -> Match | None:
    seen = _observe(observe, plan(case))
    if len(wrong_ones(seen)) < 2:
        return None
    first, *rest = sorted((*seen, *earlier), key=lambda o: not o.wrong)
    candidates = [
        f
        for f in BANK
        if first.explained(f) and all(o.explained(f) for o in rest) and sum(o.shows(f) for o in seen) >= 2
    ]
    if len(candidates) > 1:
        candidates = _narrow(observe, plan, case, candidates)
    chosen = _most_general(candidates)
    if chosen is None or _contradicted(observe, plan, case, chosen):
        return None
    count = sum(o.shows(chosen) for o in seen)
    only = _conditions(observe, plan, case, chosen)
    return Match(
        replace(chosen, sentence=f"{chosen.sentence}, but only together with {only}") if only else chosen,
        count,
    )


def _conditions(observe: Observer, plan: Plan, case: Case, chosen: Fingerprint) -> str:
    """Return the features without which the code is right although the mistake would show."""
    words = []
    for smaller in without_one(case, observe.subject.space):
        seen = [o for v in plan(smaller)[:2] if (o := observe(v)) is not None]
        if seen and not any(o.wrong for o in seen) and all(o.shows(chosen) for o in seen):
            words += [
                word for name, word in _FEATURES.items() if getattr(smaller, name) != getattr(case, name)
            ]
    return " and ".join(words)


def _contradicted(observe: Observer, plan: Plan, case: Case, chosen: Fingerprint) -> bool:
    """Return whether another length belies a mistake with blocks, or another scale one of the scale."""
    if chosen.name in ("scale.missing", "scale.explicit_ignored") and case.scale is not None:
        others = [plan(case)[0].replace(scale=scale) for scale in (0.7, 1.7, -0.4)]
    elif chosen.name.startswith(("tail.", "online.")):
        others = list(telling(plan(case)[0], observe.subject.space))
    else:
        return False
    for extra in others:
        seen = observe(extra)
        if seen is not None and not seen.wrong and seen.shows(chosen):
            return True
    return False


def _narrow(observe: Observer, plan: Plan, case: Case, candidates: list[Fingerprint]) -> list[Fingerprint]:
    """Drop candidates with cases on which they differ; a case that none explains says nothing."""
    for extra in telling(plan(case)[0], observe.subject.space):
        if len(candidates) < 2:
            break
        fitted = observe.subject.space.fit(extra)
        if fitted is None:
            continue
        inputs = observe.wide(fitted)
        if not any(tells_apart(inputs, candidates[0], other) for other in candidates[1:]):
            continue
        seen = observe(fitted)
        if seen is None:
            continue
        kept = [f for f in candidates if seen.explained(f)]
        candidates = kept or candidates
    return candidates


def _ancestors(found: Fingerprint) -> set[str]:
    names: set[str] = set()
    while found.special_of is not None and found.special_of not in names:
        names.add(found.special_of)
        if found.special_of not in _NAMES:
            break
        found = _NAMES[found.special_of]
    return names


def _most_general(candidates: Sequence[Fingerprint]) -> Fingerprint | None:
    """Return the one candidate of which all others are special cases."""
    for one in candidates:
        if all(other is one or one.name in _ancestors(other) for other in candidates):
            return one
    return None


def _behaviour(observe: Observer, case: Case) -> Match | None:
    """Name what shows in no number: the dtype, and dropout where it should be off."""
    subject = observe.subject
    variants = [v.replace(dtype=case.dtype) for v in next(plans(case, subject.space))(case)[:2]]
    seen = [o for v in variants if (o := observe(v)) is not None]
    if len(seen) == 2 and all(o.written for o in seen):
        return Match(WRITTEN, len(seen))
    if len(seen) == 2 and not any(o.same_dtype or o.wrong for o in seen):
        return Match(DTYPE, len(seen))
    if not isinstance(subject, LayerSubject) or not subject.space.has("dropout"):
        return None
    return _dropout(observe, variants)


def _dropout(observe: Observer, variants: Sequence[Case]) -> Match | None:
    from ..conformance.failures import NotApplicable, SubjectError

    differ = 0
    for variant in variants:
        fitted = observe.subject.space.fit(variant)
        if fitted is None:
            continue
        inputs = observe.inputs(fitted)
        try:
            layer = observe.subject.build(inputs.weights, dropout=0.5)  # type: ignore[union-attr]
            first, again, other = (_seeded(layer, inputs, seed) for seed in (1, 1, 2))
            # A module that keeps something from call to call differs with one seed as well.
            differ += torch.equal(first, again) and not torch.equal(first, other)
        except (SubjectError, NotApplicable):
            continue
    return Match(DROPOUT, differ) if differ >= 2 else None


def _seeded(layer: Any, inputs: Any, seed: int) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        output: torch.Tensor = layer.run(inputs).output
    return output
