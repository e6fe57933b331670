"""What does True mean in a mask? The one convention that a bug imitates perfectly.

An inverted mask and a mask of the other convention behave alike, so behaviour alone never decides.
Agreement with the contract (True = may attend) is taken. The opposite behaviour is taken only if the
code documents it or the user declares it; otherwise it is a question, with both consequences.
"""

import inspect
import re
from typing import Any

from ..conformance.cases import Case
from ..loading import Target
from .experiments import Probe, agrees, attempt
from .findings import Finding, Question

BLOCKED_WORDS = r"(block|mask(ed)? out|ignor|not (to )?attend|exclud|forbid|hidden|padd(ed|ing)|not allowed|disallow)"
ATTEND_WORDS = r"(attend|keep|kept|visible|allowed|valid|take[s]? part|participat)"


def documented_polarity(target: Target) -> str | None:
    """Return what the code's own words say that True means; None if they say nothing, or both."""
    try:
        text = inspect.getsource(target.object)
    except (OSError, TypeError):
        return None
    spoken = "\n".join(re.findall(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'|#(.*)', text, re.DOTALL) and ["".join(m) for m in re.findall(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'|#([^\n]*)', text, re.DOTALL)])
    said = set()
    for match in re.finditer(r"\b(True|1|nonzero|non-zero)s?\b\s*(=|:|->|means?|marks?|where|for|at|indicates?|are|is|values?)[^.\n]{0,60}", spoken):
        words = match.group(0).lower()
        if re.search(r"(may|can) not attend|cannot attend|not (to )?attend", words) or re.search(BLOCKED_WORDS, words):
            said.add("blocked")
        elif re.search(ATTEND_WORDS, words):
            said.add("attend")
    return said.pop() if len(said) == 1 else None


def decide_polarity(target: Target, probe: Probe, run: Any, findings: list[Finding], *, case: Case) -> None:
    """Find out what True means, or ask."""
    if not probe.space.has("mask"):
        return
    if probe.declaration.mask is not None:
        findings.append(Finding("mask", f"True = {probe.declaration.mask}", "declared"))
        return
    axes = ("".join(a for a in form if a in probe.space.mask_axes) for form in ("bhqk", "qk", "bk"))
    fits = {"attend": True, "blocked": True}
    for number, form in enumerate(dict.fromkeys(axes)):
        masked = case.replace(mask="random", mask_axes=form, seed=31 + number, causal=probe.space.causal == "always")
        inputs = probe.space.fit(masked).core_inputs() if not hasattr(run, "inputs") else run.inputs(masked)
        # Both readings must be alive in every row, or a dead row would decide.
        for reading in fits:
            output, _ = attempt(lambda reading=reading, inputs=inputs: run(alive(inputs), mask=reading))
            fits[reading] = fits[reading] and agrees(output, alive(inputs))
    documented = documented_polarity(target)
    if fits["attend"] or not fits["blocked"]:
        probe.declaration = probe.declaration.replace(mask="attend")
        how = "probed" if fits["attend"] else "assumed"
        findings.append(Finding("mask", "True = may attend", how, "mask=blocked"))
        return
    probe.declaration = probe.declaration.replace(mask="blocked")
    if documented == "blocked":
        findings.append(Finding("mask", "True = blocked, as its own words say", "documented", "mask=attend"))
        return
    findings.append(Finding("mask", "True = blocked (declare it with --declare mask=blocked)", "probed", "mask=blocked"))
    said = " although its own words say that True takes part" if documented == "attend" else ""
    probe.questions.append(
        Question(
            "mask.polarity",
            f"the mask behaves as True = blocked{said}: is that meant? If it is, declare it and the other clauses stand as reported;"
            " if True = may attend is meant, the mask is inverted and every masked output is wrong",
            "mask=blocked",
        )
    )


def alive(inputs: Any) -> Any:
    """Return the inputs with a mask that leaves each row a key under either reading."""
    mask = inputs.mask.clone()
    if mask.shape[-1] > 1:
        mask[..., 0] = True
        mask[..., 1] = False
    return inputs.replace(mask=mask)
