"""A session in this very process: recognise once, then run clauses one by one."""

import sys
from typing import Any

from .._clauses import Clause, clauses
from .._errors import TargetError
from ..declaration import Declaration
from ..loading import Target, load_target
from .profiles import Profile, profile
from .results import ClauseResult

MANY_FAILURES = 4


class LocalSession:
    """Runs clauses on one target here.

    Args:
        target: Text that names it, or an object.
        declaration: What is declared about it.
        profile_name: How hard to try.
        seed: Of all cases.
        device: Where tensors live.
        scripts: Folder for scripts that reproduce failures; None writes none.
        inside: Where the module stands that is checked, if the target is a model; `new` then makes the model.
        new: See `inside`.
    """

    def __init__(
        self, target: str | Target, declaration: Declaration, *, profile_name: str = "default", seed: int = 1,
        device: str = "cpu", scripts: str | None = None, inside: str | None = None, new: str | None = None,
    ) -> None:  # fmt: skip
        self._inside, self._new = inside, new
        self._target, self._declaration = target, declaration
        self._profile: Profile = profile(profile_name)
        self._seed, self._device, self._scripts = seed, device, scripts
        self.recognition: Any = None
        self._failures = 0

    @classmethod
    def from_order(cls, order: dict[str, Any]) -> "LocalSession":
        """Build a session from what a parent process sent."""
        return cls(
            order["target"], Declaration.from_mapping(order["declaration"]), profile_name=order["profile"],
            seed=order["seed"], device=order["device"], scripts=order.get("scripts"),
            inside=order["inside"], new=order["new"],
        )  # fmt: skip

    def recognise(self) -> dict[str, Any]:
        """Load and recognise the target, and let the two oracles agree first.

        Raises:
            SelfTestError: If the oracles disagree.
            TargetError: If the target cannot be used.
        """

        from .. import oracle
        from ..recognition import recognise
        from ..recognition.inside import inner_target
        from .guard import under_way
        from .placement import Placement

        if self._device != "cpu":
            require_device(self._device)
            Placement.use(self._device)
        oracle.require_agreement()
        if isinstance(self._target, str):
            watch_built_ins()
            with under_way():
                self._target = load_target(self._target)
        if self._inside is not None:
            self._target = inner_target(self._target, self._inside, Declaration(new=self._new))
        self.recognition = recognise(self._target, self._declaration)
        return recognition_data(self.recognition)

    def run(self, name: str) -> ClauseResult:
        """Run one clause; a clause that is declared to deviate is held to its deviation."""
        from .runner import run_clause

        clause = clauses()[name]
        deviation = self.recognition.declaration.deviations.get(name)
        if deviation is not None:
            return self._deviation(clause, deviation)
        result = run_clause(clause, self.recognition, self._effort(), start=self._seed)
        if result.failure is None:
            return result
        from .diagnosis import diagnose

        self._failures += 1
        return diagnose(clause, result, self.recognition, scripts=self._scripts)

    def _effort(self) -> Profile:
        """Return the profile; where much is broken already, less is spent on making each failure small."""
        from dataclasses import replace

        if self._failures < MANY_FAILURES:
            return self._profile
        return replace(self._profile, shrink=self._profile.shrink // 5)

    def _deviation(self, clause: Clause, reason: str) -> ClauseResult:
        from dataclasses import replace

        from .runner import run_clause

        steady = replace(self._profile, random=0, shrink=0)
        result = run_clause(clause, self.recognition, steady, start=1)
        if result.status == "failed":
            return replace(result, status="deviation", reason=reason)
        if result.status == "passed":
            return replace(
                result,
                status="error",
                reason=f"declared to deviate ({reason}), but the clause holds: remove the deviation",
            )
        return result

    def call(self, what: str) -> Any:
        """Return something that only a process with the target in it can tell."""
        if what == "declaration":
            from ..recognition import as_toml

            return as_toml(self.recognition)
        raise ValueError(f"no such call: {what}")


def require_device(name: str) -> None:
    """Refuse a device that torch does not know, or that is not there.

    Raises:
        TargetError: If no tensor can be made on it.
    """
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).strip().split("\n")[0]
        raise TargetError(f"device {name!r} cannot be used here: {first}") from None


def watch_built_ins() -> None:
    """Have jaxtyping check the signatures of built-in implementations from their first import on."""
    if "attnspec_impls" not in sys.modules:
        from jaxtyping import install_import_hook

        install_import_hook("attnspec_impls", "attnspec.checked.typechecker")


def recognition_data(recognition: Any) -> dict[str, Any]:
    """Return what a report needs to know of a recognition."""
    import torch

    space = recognition.space
    return {
        "name": recognition.name,
        "contract": space.contract,
        "dtypes": list(space.dtypes),
        "features": sorted(space.features),
        "causal": space.causal,
        "alignment": space.alignment,
        "precision": recognition.declaration.precision or "stored",
        "findings": [
            {"topic": f.topic, "value": f.value, "how": f.how, "override": f.override}
            for f in recognition.findings
        ],
        "questions": [
            {"clause": q.clause, "text": q.text, "declare": q.declare} for q in recognition.questions
        ],
        "absent": dict(recognition.absent),
        "deviations": dict(recognition.declaration.deviations),
        "declaration": recognition.declaration.as_dict(),
        "torch": torch.__version__,
    }
