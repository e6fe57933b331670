"""The code under test behind one interface, whatever its own conventions are.

A subject takes the contract's inputs and gives the contract's output; every difference of layout,
polarity and naming is bridged here, from its declaration, and nowhere else.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """Tells whoever watches that the code under test is still answering; replaced by the worker."""

    beat: Callable[[], None] = staticmethod(lambda: None)


@contextmanager
def kept_settings() -> Any:
    """Put back what user code may have changed globally, so that one clause never spoils the next."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call user code; whatever it raises becomes a `SubjectError`.

    Raises:
        SubjectError: If the code raised anything but a keyboard interrupt, a system exit included.
    """
    Heartbeat.beat()
    with kept_settings():
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except NotApplicable:
            raise
        except BaseException as error:
            raise SubjectError.of(error) from error


def remember(function: Any, given: Mapping[str, Any]) -> None:
    """Keep the latest call, for the script that reproduces a failure."""
    LastCall.function, LastCall.given = function, dict(given)
    LastCall.state = function.state_dict() if isinstance(function, torch.nn.Module) else None


class Caller:
    """Calls one function or module with contract arguments, by its declaration."""

    def __init__(self, declaration: Declaration, namespace: Mapping[str, Any], *, axes: str) -> None:
        self.declaration = declaration
        self.axes = axes
        self._namespace = dict(namespace)
        self._code = compile(declaration.call, "<declared call>", "eval") if declaration.call else None
        self._output = compile(declaration.output, "<declared output>", "eval") if declaration.output else None
        weights = declaration.returned_weights
        self._weights = compile(weights, "<declared weights>", "eval") if weights else None

    def __call__(self, function: Any, tensors: Mapping[str, Tensor], inputs: Options, *, d: int, want_weights: bool = False,
                 dropout: float = 0.0) -> Outcome:  # fmt: skip
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
            handed["mask"] = given["mask"] = self._mask(inputs, tensors)
        if inputs.bias is not None:
            handed["bias"] = given["bias"] = inputs.bias
        for name in ("causal", "window", "softcap", "scale"):
            value = getattr(inputs, name)
            if value is not None and value is not False and not (name == "causal" and self.declaration.causal == "always"):
                given[name] = value
        if dropout:
            given["dropout"] = dropout
        if want_weights:
            given["return_weights"] = True
        remember(function, given)
        result = guarded(self._invoke, function, given)
        output = self._pick_output(result)
        weights = self._pick_weights(result) if want_weights else None
        return Outcome(self._restore(output), weights, output, handed)

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
            raise SubjectError("returned", f"an output of shape {tuple(output.shape)}, where {layout!r} is declared")
        return rearrange(output, f"{to_einops(layout)} -> {to_einops(self.axes)}")

    def _mask(self, inputs: Options, tensors: Mapping[str, Tensor]) -> Tensor:
        mask = inputs.mask
        assert mask is not None
        query = tensors["query"]
        if self.declaration.mask_shape:
            key = tensors.get("key", query)
            kv_len = key.shape[-2]
            whole = mask if mask.dim() == 4 else mask[None, None]
            mask = shaped_mask(whole, self.declaration.mask_shape, query.shape[0], query.shape[-2], kv_len, self._heads(tensors))
        return convert_mask(mask, self.declaration, query.dtype)

    def _heads(self, tensors: Mapping[str, Tensor]) -> int:
        return tensors["query"].shape[1] if tensors["query"].dim() == 4 else int(self._namespace.get("heads", 1))

    def _invoke(self, function: Any, given: Mapping[str, Any]) -> Any:
        if self._code is not None:
            names = dict.fromkeys(("key", "value", "mask", "bias", "window", "softcap", "scale"))
            bound = {**names, "causal": False, "dropout": 0.0, "return_weights": False, **given, "f": function}
            if bound["key"] is None and "query" in bound:
                bound["key"] = bound["query"]
            if bound["value"] is None:
                bound["value"] = bound["key"]
            return eval(self._code, self._namespace | bound)
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


def bind_arguments(function: Any, arguments: Mapping[str, str], given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
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
    whole = mask.expand(*[w if m == 1 else m for m, w in zip(mask.shape, wanted, strict=True)])
    kept = {name: i for i, name in enumerate(sizes) if name in words}
    if any(whole.shape[i] != 1 for i, name in enumerate(sizes) if name not in words):
        raise NotApplicable(f"its mask has the axes {axes!r} and cannot express this one")
    squeezed = whole[tuple(slice(None) if name in kept else 0 for name in sizes)]
    return rearrange(squeezed, f"{' '.join(kept)} -> {to_einops(axes)}")


def convert_mask(mask: Tensor, declaration: Declaration, dtype: torch.dtype) -> Tensor:
    """Bring a True = attend mask into the declared convention."""
    if declaration.mask == "additive":
        return additive_from_attend(mask, dtype)
    mask = ~mask if declaration.mask == "blocked" else mask
    if declaration.mask_dtype == "int":
        return mask.to(torch.int64)
    return mask.to(dtype) if declaration.mask_dtype == "float" else mask


class CoreSubject:
    """A core function under test."""

    def __init__(self, function: Any, declaration: Declaration, namespace: Mapping[str, Any], space: Space, *, name: str) -> None:
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
            self.function, tensors, inputs, d=inputs.query.shape[-1], want_weights=want_weights, dropout=dropout
        )

    def gradients(self, inputs: CoreInputs, upstream: Tensor, *, wrt: tuple[str, ...]) -> tuple[Outcome, dict[str, Tensor]]:
        """Call the core and return the gradients of the named tensors for one upstream gradient."""
        leaves = {name: getattr(inputs, name).detach().requires_grad_() for name in wrt}
        outcome = self.run(inputs.replace(**leaves))
        if not outcome.output.requires_grad:
            raise SubjectError("returned", "an output that is cut off from the graph: no gradient can flow")
        found = guarded(torch.autograd.grad, outcome.output, list(leaves.values()), upstream, allow_unused=True)
        filled = (torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves.values(), found, strict=True))
        return outcome, dict(zip(leaves, filled, strict=True))
