"""The code under test behind one interface, whatever its own conventions are.

A subject takes the contract's inputs and gives the contract's output; every difference of layout,
polarity and naming is bridged here, from its declaration, and nowhere else.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from .._inputs import CoreInputs, Options
from .._slots import to_einops
from ..conventions import additive_from_attend
from ..declaration import Declaration
from ..precision import Precision, precision
from .failures import NotApplicable, SubjectError
from .placement import placed, show_changes
from .script import LastCall
from .space import Space

CORE_AXES = "batch heads q_len d_k"
LAYER_AXES = "batch q_len d_model"


@dataclass
class Outcome:
    """What one call gave.

    Attributes:
        output: In the contract's axes.
        weights: The attention weights, where they were asked for and returned.
        raw: The output tensor as the code returned it.
        handed: The tensors that the code was given, by contract name.
    """

    output: Tensor
    weights: Tensor | None
    raw: Tensor
    handed: dict[str, Tensor] = field(repr=False, default_factory=dict)


class Heartbeat:
    """Tells whoever watches that the code under test is still answering; replaced by the worker.

    Attributes:
        beat: Called before each call of the code under test.
        alone: Whether the process is the code's own, so that an interrupt can only be its doing.
    """

    beat: Callable[[], None] = staticmethod(lambda: None)
    alone = False


@contextmanager
def kept_settings() -> Any:
    """Put back what user code may have changed globally, so that one clause never spoils the next."""
    dtype, grad, folder = torch.get_default_dtype(), torch.is_grad_enabled(), Path.cwd()
    try:
        yield
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)
        if Path.cwd() != folder:
            os.chdir(folder)


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call user code; whatever it raises becomes a `SubjectError`.

    Raises:
        SubjectError: If the code raised anything but a keyboard interrupt, a system exit included.
    """
    Heartbeat.beat()
    with kept_settings():
        try:
            return function(*args, **kwargs)
        except NotApplicable:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not Heartbeat.alone:
                raise
            trouble = SubjectError.of(error)
    # Raised out here, it does not keep the frames of the code, nor the memory that they hold.
    raise trouble


def remember(function: Any, given: Mapping[str, Any], again: Callable[[], Any]) -> None:
    """Keep the latest call, for the script that reproduces a failure and for the trace that explains it."""
    LastCall.function, LastCall.given, LastCall.again = function, dict(given), again
    LastCall.state = function.state_dict() if isinstance(function, torch.nn.Module) else None


class Caller:
    """Calls one function or module with contract arguments, by its declaration."""

    def __init__(self, declaration: Declaration, namespace: Mapping[str, Any], *, axes: str) -> None:
        self.declaration = declaration
        self.axes = axes
        self._namespace = dict(namespace)
        self._code = compile(declaration.call, "<declared call>", "eval") if declaration.call else None
        self.takes = (
            frozenset(names_of(self._code)) if self._code is not None else frozenset(declaration.arguments)
        )
        if declaration.arguments:
            self.takes -= {name for name in ("mask", "padding") if name not in declaration.arguments}
        self._output = (
            compile(declaration.output, "<declared output>", "eval") if declaration.output else None
        )
        weights = declaration.returned_weights
        self._weights = compile(weights, "<declared weights>", "eval") if weights else None

    def __call__(
        self,
        function: Any,
        tensors: Mapping[str, Tensor],
        inputs: Options,
        *,
        d: int,
        want_weights: bool = False,
        dropout: float = 0.0,
    ) -> Outcome:
        """Call `function` and bring what it returns into the contract's axes.

        Args:
            function: What to call.
            tensors: The tensors attended over, by contract name, in the contract's axes.
            inputs: The options of the call.
            d: The width that the default scale is computed from.
            want_weights: Whether to ask for the attention weights.
            dropout: Handed on where the call takes it.

        Raises:
            SubjectError: If the code raises, or returns something without an output tensor.
        """
        handed = {name: self._arrange(tensor) for name, tensor in tensors.items()}
        given: dict[str, Any] = dict(handed)
        if inputs.mask is not None:
            masks = self._masks(inputs, tensors)
            handed |= masks
            given |= masks
        if inputs.bias is not None:
            handed["bias"] = given["bias"] = inputs.bias
        for name in ("causal", "window", "softcap", "scale"):
            value = getattr(inputs, name)
            if (
                value is not None
                and value is not False
                and not (name == "causal" and self.declaration.causal == "always")
            ):
                given[name] = value
        if dropout:
            given["dropout"] = dropout
        if want_weights and "return_weights" in self.takes:
            given["return_weights"] = True
        owned, given = given, placed(given)
        handed = {name: given[name] for name in handed}
        remember(function, given, lambda: self._invoke(function, given, self._sizes(tensors)))
        with tapped(function, self.declaration.tap) as taken:
            result = guarded(self._invoke, function, given, self._sizes(tensors))
        show_changes(owned, given)
        output = self._pick_output(taken[-1] if taken else result)
        weights = self._pick_weights(result) if want_weights else None
        return Outcome(
            self._restore(output).cpu(), None if weights is None else weights.cpu(), output, handed
        )

    def _arrange(self, tensor: Tensor) -> Tensor:
        layout = self.declaration.layout
        if layout is None or layout == self.axes:
            return tensor
        return rearrange(tensor, f"{to_einops(self.axes)} -> {to_einops(layout)}")

    def _restore(self, output: Tensor) -> Tensor:
        layout = self.declaration.output_layout or self.declaration.layout
        if layout is None or layout == self.axes:
            return output
        if output.dim() != len(layout.split()):
            raise SubjectError(
                "returned", f"an output of shape {tuple(output.shape)}, where {layout!r} is declared"
            )
        return rearrange(output, f"{to_einops(layout)} -> {to_einops(self.axes)}")

    def _masks(self, inputs: Options, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mask as the code takes it: in one argument, in two, or over `batch kv_len` alone."""
        mask, declared = inputs.mask, self.declaration
        assert mask is not None
        dtype = tensors["query"].dtype
        if mask.dim() not in (2, 4) and (declared.mask_shape or "padding" in self.takes):
            raise NotApplicable(
                f"its mask is brought into the axes {declared.mask_shape or 'batch kv_len'!r}"
            )
        if "padding" not in self.takes:
            shaped = self._shape_mask(mask, declared.mask_shape, tensors)
            return {"mask": convert_mask(shaped, declared, dtype)}
        whole = mask if mask.dim() == 4 else mask[None, None]
        kept, rest = split_mask(whole)
        found: dict[str, Tensor] = {}
        if kept is None or ("mask" in self.takes and bool(kept.all())):
            rest, kept = whole, None
        if kept is not None:
            padding = self._shape_mask(kept, "batch kv_len", tensors)
            found["padding"] = convert_mask(
                padding, declared.replace(mask=declared.padding or "blocked", mask_dtype="bool"), dtype
            )
        if kept is None or not bool(rest.all()):
            if "mask" not in self.takes:
                raise NotApplicable("its mask is over batch and keys alone")
            found["mask"] = convert_mask(
                self._shape_mask(rest, declared.mask_shape, tensors), declared, dtype
            )
        return found

    def _shape_mask(self, mask: Tensor, forms: str | None, tensors: Mapping[str, Tensor]) -> Tensor:
        """Bring a mask into the first of the declared forms that can express it."""
        if not forms:
            return mask
        n = self._sizes(tensors)
        whole = mask if mask.dim() == 4 else mask[None, None]
        problem: NotApplicable | None = None
        for form in forms.split("|"):
            try:
                return shaped_mask(whole, form.strip(), n["batch"], n["q_len"], n["kv_len"], n["heads"])
            except NotApplicable as reason:
                problem = problem or reason
        assert problem is not None
        raise problem

    def _sizes(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the sizes of this call by the contract's names."""
        query, key = tensors["query"], tensors.get("key", tensors["query"])
        value = tensors.get("value", key)
        sizes = {"batch": query.shape[0], "q_len": query.shape[-2], "kv_len": key.shape[-2]}
        if query.dim() == 4:
            heads, kv_heads = query.shape[1], key.shape[1]
            sizes |= {"heads": heads, "kv_heads": kv_heads, "group": heads // max(kv_heads, 1)}
            return sizes | {
                "d_k": query.shape[-1],
                "d_v": value.shape[-1],
                "d_model": heads * query.shape[-1],
            }
        heads = int(self._namespace.get("heads", 1))
        return sizes | {
            "heads": heads,
            "d_model": query.shape[-1],
            "d_k": int(self._namespace.get("d_k", query.shape[-1] // max(heads, 1))),
        }

    def _invoke(self, function: Any, given: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
        if self._code is not None:
            lost = [
                name for name in given if name not in self.takes and name not in ("query", "key", "value")
            ]
            if lost:
                raise NotApplicable(f"its call takes no {lost[0]}")
            names = dict.fromkeys(("key", "value", "mask", "padding", "bias", "window", "softcap", "scale"))
            bound = {
                **HELPERS,
                **sizes,
                **names,
                "causal": False,
                "dropout": 0.0,
                "return_weights": False,
                **given,
                "f": function,
            }
            if bound["key"] is None and "query" in bound:
                bound["key"] = bound["query"]
            if bound["value"] is None:
                bound["value"] = bound["key"]
            return eval(self._code, {**HELPERS, **self._namespace, **bound})
        positional, keywords = bind_arguments(function, self.declaration.arguments, given)
        return function(*positional, **keywords)

    def _pick_output(self, result: Any) -> Tensor:
        if self._output is not None:
            result = guarded(eval, self._output, self._namespace | {"result": result})
        found = first_tensor(result)
        if found is None:
            raise SubjectError("returned", f"a {type(result).__name__} without a tensor in it")
        return found

    def _pick_weights(self, result: Any) -> Tensor | None:
        if self._weights is not None:
            found = guarded(eval, self._weights, self._namespace | {"result": result})
            return found if isinstance(found, Tensor) else None
        members = members_of(result)
        return members[1] if len(members) > 1 and isinstance(members[1], Tensor) else None


# What a declared expression may use beside the contract's names and those of the user's module.
HELPERS: dict[str, Any] = {
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "SimpleNamespace": SimpleNamespace,
    "deepcopy": deepcopy,
}


def names_of(code: CodeType) -> set[str]:
    """Return every name that an expression uses, those inside its comprehensions and lambdas too."""
    inner = (names_of(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(code.co_freevars, *inner)


def split_mask(whole: Tensor) -> tuple[Tensor | None, Tensor]:
    """Take a mask apart into one over `batch kv_len` and one alike in the batch, if together they are it."""
    kept, rest = whole.any(2, keepdim=True).any(1, keepdim=True), whole.any(0, keepdim=True)
    if whole.shape[1] == 1 and whole.shape[2] == 1:
        return whole, torch.ones_like(whole[:1])
    if whole.shape[0] > 1 and bool(((kept & rest) == whole).all()) and whole.shape[2] > 1:
        return kept, rest
    return None, whole


@contextmanager
def tapped(function: Any, path: str | None) -> Iterator[list[Any]]:
    """Collect what the submodule at `path` returns while the block around it runs."""
    taken: list[Any] = []
    if path in (None, "none") or not isinstance(function, torch.nn.Module):
        yield taken
        return
    handle = function.get_submodule(path).register_forward_hook(
        lambda module, args, result: taken.append(result)
    )
    try:
        yield taken
    finally:
        handle.remove()


def members_of(result: Any) -> list[Any]:
    """Return the members of a tuple, a list, a mapping or a dataclass."""
    if isinstance(result, tuple | list):
        return list(result)
    if isinstance(result, Mapping):
        return list(result.values())
    if hasattr(result, "__dataclass_fields__"):
        return [getattr(result, name) for name in result.__dataclass_fields__]
    return [result]


def first_tensor(result: Any) -> Tensor | None:
    """Return a tensor, or the first member of a result if that is one."""
    if isinstance(result, Tensor):
        return result
    members = members_of(result)
    return members[0] if members and isinstance(members[0], Tensor) else None


def bind_arguments(
    function: Any, arguments: Mapping[str, str], given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments for the user's parameter names."""
    missing = [name for name in given if name not in arguments]
    if missing:
        raise NotApplicable(f"it takes no {missing[0]}")
    keywords = {arguments[name]: value for name, value in given.items()}
    positional: list[Any] = []
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    for p in parameters:
        if p.kind is not p.POSITIONAL_ONLY or p.name not in keywords:
            break
        positional.append(keywords.pop(p.name))
    return positional, keywords


def shaped_mask(mask: Tensor, axes: str, batch: int, q_len: int, kv_len: int, heads: int) -> Tensor:
    """Bring a rank-4 mask into the declared axes; an axis that is left out must not vary."""
    words = [part for word in axes.split() for part in word.split("*")]
    sizes = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
    wanted = [sizes[name] if name in words else 1 for name in sizes]
    if any(m not in (1, sizes[name]) for m, name in zip(mask.shape, sizes, strict=True)):
        raise NotApplicable(f"its mask is brought into the axes {axes!r}, which this one does not fit")
    whole = mask.expand(*[w if m == 1 else m for m, w in zip(mask.shape, wanted, strict=True)])
    kept = {name: i for i, name in enumerate(sizes) if name in words}
    if any(whole.shape[i] != 1 for i, name in enumerate(sizes) if name not in words):
        raise NotApplicable(f"its mask has the axes {axes!r} and cannot express this one")
    squeezed = whole[tuple(slice(None) if name in kept else 0 for name in sizes)]
    return rearrange(squeezed, f"{' '.join(kept)} -> {to_einops(axes)}")


def convert_mask(mask: Tensor, declaration: Declaration, dtype: torch.dtype) -> Tensor:
    """Bring a True = attend mask into the declared convention; one of another dtype is handed on as it is."""
    if mask.dtype != torch.bool:
        return mask
    if declaration.mask == "additive":
        return additive_from_attend(mask, dtype)
    mask = ~mask if declaration.mask == "blocked" else mask
    if declaration.mask_dtype == "int":
        return mask.to(torch.int64)
    return mask.to(dtype) if declaration.mask_dtype == "float" else mask


class CoreSubject:
    """A core function under test."""

    def __init__(
        self,
        function: Any,
        declaration: Declaration,
        namespace: Mapping[str, Any],
        space: Space,
        *,
        name: str,
    ) -> None:
        self.name, self.function, self.declaration, self.space = name, function, declaration, space
        self.precision: Precision = precision(declaration.precision or "stored")
        self._call = Caller(declaration, namespace, axes=CORE_AXES)

    def run(self, inputs: CoreInputs, *, want_weights: bool = False, dropout: float = 0.0) -> Outcome:
        """Call the core.

        Raises:
            SubjectError: If it raises.
            NotApplicable: If it does not take one of the arguments.
        """
        tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        return self._call(
            self.function,
            tensors,
            inputs,
            d=inputs.query.shape[-1],
            want_weights=want_weights,
            dropout=dropout,
        )

    def gradients(
        self, inputs: CoreInputs, upstream: Tensor, *, wrt: tuple[str, ...]
    ) -> tuple[Outcome, dict[str, Tensor]]:
        """Call the core and return the gradients of the named tensors for one upstream gradient."""
        leaves = {name: getattr(inputs, name).detach().requires_grad_() for name in wrt}
        outcome = self.run(inputs.replace(**leaves))
        if not outcome.output.requires_grad:
            raise SubjectError("returned", "an output that is cut off from the graph: no gradient can flow")
        found = guarded(
            torch.autograd.grad, outcome.output, list(leaves.values()), upstream, allow_unused=True
        )
        filled = (
            torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves.values(), found, strict=True)
        )
        return outcome, dict(zip(leaves, filled, strict=True))
