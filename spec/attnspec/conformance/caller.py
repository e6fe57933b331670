"""One call of the code under test, with the contract's inputs, by its declaration.

Every difference of layout, polarity and naming between the contract and the code is bridged here,
and nowhere else.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from einops import EinopsError, rearrange
from torch import Tensor

from .._inputs import Options
from .._slots import to_einops
from ..declaration import Declaration
from .calls import remember
from .failures import NotApplicable, SubjectError
from .grad_mode import entered, mode_of, recording, released
from .guard import guarded
from .mask_forms import handed_masks
from .placement import placed, show_changes

CORE_AXES = "batch heads q_len d_k"


LAYER_AXES = "batch q_len d_model"


def with_globals(found: Any, *, make: Callable[[], Any], **values: Any) -> Any:
    """Return what `make` makes while globals of the module of `found` have other values."""
    there = vars(sys.modules[found.__module__])
    before = {name: there[name] for name in values}
    there.update(values)
    try:
        return make()
    finally:
        there.update(before)


# What a declared expression may use beside the contract's names and those of the user's module.
HELPERS: dict[str, Any] = {
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "SimpleNamespace": SimpleNamespace,
    "deepcopy": deepcopy,
    "with_globals": with_globals,
}


# What a call gets for an argument that is not given and that it does not take without.
NOT_GIVEN: dict[str, Any] = {
    **dict.fromkeys(("mask", "padding", "bias", "window", "softcap", "scale")),
    "causal": False,
    "dropout": 0.0,
    "return_weights": False,
}

# In the axes of an output the width of the values is that of a head.
WIDTHS = {"d_v": "d_k"}

# Options of a call that a constructor may take instead: `--new 'MyLayer(d_model, heads, causal=causal)'`.
MADE_WITH = ("causal", "mask", "window")


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
        self.made_with = made_with(declaration)
        self.takes |= self.made_with
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
        remake: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> Outcome:
        """Call `function` and bring what it returns into the contract's axes.

        Args:
            function: What to call.
            tensors: The tensors attended over, by contract name, in the contract's axes.
            inputs: The options of the call.
            d: The width that the default scale is computed from.
            want_weights: Whether to ask for the attention weights.
            dropout: Handed on where the call takes it.
            remake: Returns `function` as it is constructed with the options that its constructor takes.

        Raises:
            SubjectError: If the code raises, or returns something without an output tensor.
        """
        handed = {name: self._arrange(tensor) for name, tensor in tensors.items()}
        given: dict[str, Any] = dict(handed)
        if inputs.mask is not None:
            masks = handed_masks(
                inputs.mask, self.declaration, self.takes, self._sizes(tensors), tensors["query"].dtype
            )
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
        mode = mode_of(given)
        given = recording(given, mode)
        owned, given = given, placed(given)
        handed = {name: given[name] for name in handed}
        if remake is not None and self.made_with:
            function = remake({name: given.pop(name) for name in self.made_with if name in given})

        def again() -> Any:
            with entered(mode):
                return self._invoke(function, given, self._sizes(tensors))

        with entered(mode):
            remember(function, given, again)
        with tapped(function, self.declaration.tap) as taken:
            result = guarded(again)
        show_changes(owned, given)
        output = self._pick_output(taken[-1] if taken else result)
        weights = self._pick_weights(result) if want_weights else None
        restored = released(self._restore(output, self._sizes(tensors)).cpu(), mode)
        return Outcome(restored, None if weights is None else released(weights.cpu(), mode), output, handed)

    def _arrange(self, tensor: Tensor) -> Tensor:
        layout = self.declaration.layout
        if layout is None or layout == self.axes:
            return tensor
        return rearrange(tensor, f"{to_einops(self.axes)} -> {to_einops(layout)}")

    def _restore(self, output: Tensor, sizes: Mapping[str, int]) -> Tensor:
        layout = self.declaration.output_layout or self.declaration.layout
        if layout is None or layout == self.axes:
            return output
        if output.dim() != len(layout.split()):
            raise SubjectError(
                "returned", f"an output of shape {tuple(output.shape)}, where {layout!r} is declared"
            )
        # What comes out is as wide as the values, whichever width the layout was written with.
        layout = " ".join("*".join(WIDTHS.get(n, n) for n in word.split("*")) for word in layout.split())
        sizes = {**sizes, "d_k": sizes.get("d_v", sizes["d_k"])}
        merged = [name for word in layout.split() if "*" in word for name in word.split("*")]
        try:
            return rearrange(
                output,
                f"{to_einops(layout)} -> {to_einops(self.axes)}",
                **{name: sizes[name] for name in merged},
            )
        except EinopsError as error:
            raise SubjectError(
                "returned", f"an output of shape {tuple(output.shape)}, which is not {layout!r}"
            ) from error

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
            bound = {**HELPERS, **sizes, "key": None, "value": None, **NOT_GIVEN, **given, "f": function}
            if bound["key"] is None and "query" in bound:
                bound["key"] = bound["query"]
            if bound["value"] is None:
                bound["value"] = bound["key"]
            return eval(self._code, {**HELPERS, **self._namespace, **bound})
        arguments = dict(self.declaration.arguments)
        if self.declaration.causal == "always":
            arguments.pop("causal", None)
        positional, keywords = bind_arguments(function, arguments, given, scale=max(sizes["d_k"], 1) ** -0.5)
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


def made_with(declaration: Declaration) -> frozenset[str]:
    """Return the options of a call that the constructor takes."""
    names = names_of(compile(declaration.new, "<declared new>", "eval")) if declaration.new else ()
    return frozenset(MADE_WITH).intersection(names)


def names_of(code: CodeType) -> set[str]:
    """Return every name that an expression uses, those inside its comprehensions and lambdas too."""
    inner = (names_of(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(code.co_freevars, *inner)


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
    function: Any, arguments: Mapping[str, str], given: Mapping[str, Any], *, scale: float | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments for the user's parameter names.

    A parameter that must be given and is not asked for gets what stands for nothing; a scale the usual one.
    """
    missing = [name for name in given if name not in arguments]
    if missing:
        raise NotApplicable(f"it takes no {missing[0]}")
    keywords = {arguments[name]: value for name, value in given.items()}
    positional: list[Any] = []
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = tuple(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = ()
    neutral = {**NOT_GIVEN, "scale": scale}
    left = {name: neutral[meaning] for meaning, name in arguments.items() if meaning in neutral}
    for p in parameters:
        # A flag that is on by default is switched off where the call does not ask for it.
        on = p.default is True and left.get(p.name) is False
        if p.name in left and p.name not in keywords and (p.default is p.empty or on):
            keywords[p.name] = left[p.name]
    for p in parameters:
        if p.kind is not p.POSITIONAL_ONLY or p.name not in keywords:
            break
        positional.append(keywords.pop(p.name))
    return positional, keywords
