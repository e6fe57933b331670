"""The attention modules of a whole model: found by weights and names, each distinct kind checked once."""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .._errors import AttnspecError, TargetError
from ..declaration import Declaration
from ..loading import Target, load_target
from .places import held_tensors, roles_by_name


@dataclass
class Kind:
    """One kind of attention inside a model.

    Attributes:
        module: The first of its kind, as an instance.
        paths: Where modules of this kind stand.
    """

    module: nn.Module
    paths: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The class, and the first path."""
        return f"{self.paths[0] or '(the model itself)'} {type(self.module).__name__}"


def find_attention(target: Target, declared: Declaration | None = None) -> tuple[list[Kind], dict[str, str]]:
    """Return the kinds of attention inside a model, and what was not taken for attention, with the reason.

    Args:
        target: An instance of a model, or a class or function that makes one without arguments.
        declared: Its `new` makes the model where arguments are needed.

    Raises:
        TargetError: If there is no model.
    """
    model = make_model(target, declared or Declaration())
    candidates = {path: inner for path, inner in model.named_modules() if is_attention(inner)}
    kinds: dict[Any, Kind] = {}
    left: dict[str, str] = {}
    for path, inner in candidates.items():
        within = [p for p in candidates if p != path and p.startswith(f"{path}." if path else "")]
        if within:
            if _is_named(inner):
                left[path] = f"it holds {within[0]}, which is attention itself"
            continue
        shapes = tuple((name, tuple(p.shape)) for name, p in inner.named_parameters())
        kinds.setdefault((type(inner), shapes), Kind(inner)).paths.append(path)
    for path, inner in model.named_modules():
        if (
            _is_named(inner)
            and path not in candidates
            and path not in left
            and not any(p == path or p.startswith(f"{path}.") for p in candidates)
        ):
            left[path] = "no query, key and value projections were found in it"
    return list(kinds.values()), left


def _is_named(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "attn" in name or "attention" in name


def make_model(target: Target, declared: Declaration) -> nn.Module:
    """Return the model that a target names."""
    found = target.object
    if isinstance(found, nn.Module):
        return found.eval()
    try:
        model = eval(declared.new, {**target.namespace, "_target": found}) if declared.new else found()
    except Exception as error:
        name = getattr(found, "__name__", "Model")
        raise TargetError(
            f"{target.name}: the model cannot be made: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}\n"
            f"  say how: --new '{name}(...)'"
        ) from None
    if not isinstance(model, nn.Module):
        raise TargetError(f"{target.name}: it is a {type(model).__name__}, not a model")
    return model.eval()


def is_attention(module: nn.Module) -> bool:
    """Whether a module holds projections of queries, keys and values, close below itself."""
    tensors = {path: t for path, t in held_tensors(module).items() if path.count(".") <= 3}
    roles = roles_by_name(tensors)
    if not (roles & {"qkv"} or {"q", "kv"} <= roles or {"q", "k", "v"} <= roles):
        return False
    return not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)


def check_inside(text: str, declared: Declaration, words: Namespace) -> int:
    """Check each kind of attention inside a model once, print the reports, and return the worst exit status.

    Raises:
        AttnspecError: If nothing in the model was taken for attention.
    """
    from .. import _terminal as terminal
    from .._check import check_implementation
    from .._run import _print_report, _write_reports

    kinds, left = find_attention(load_target(text), declared)
    out = terminal.console()
    for kind in kinds:
        more = f" and {len(kind.paths) - 1} more like it" if len(kind.paths) > 1 else ""
        out.print(f"found        {kind.name}{more}")
    for path, reason in left.items():
        out.print(f"not taken    {path or '(the model itself)'}: {reason}")
    if not kinds:
        raise AttnspecError(
            f"{text}: nothing in it was taken for attention; point at the class itself, FILE:CLASS"
        )
    reports, failed = [], False
    inner = declared.replace(new=None)
    for kind in kinds:
        try:
            report = check_implementation(
                kind.module, declaration=inner, profile=words.profile, clause=words.clause,
                device=words.device, seed=words.seed, isolation="none", scripts=None,
            )  # fmt: skip
        except AttnspecError as error:
            failed = True
            out.print(f"not checked  {kind.name}: {error}")
            continue
        reports.append(report)
        out.print(f"\n{kind.name}")
        _print_report(report, out, quiet=words.quiet, many=False)
    _write_reports(words, reports) if reports else None
    return max([2 if failed else 0, *(r.status for r in reports)])
