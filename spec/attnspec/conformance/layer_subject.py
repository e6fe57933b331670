"""A layer under test: constructed with its own sizes, given canonical weights, called."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._inputs import LayerInputs
from .._slots import Slots, find_tensor
from ..declaration import Declaration
from ..precision import Precision, precision
from ..weights import LayerWeights
from .caller import HELPERS, LAYER_AXES, MADE_WITH, Caller, Outcome
from .calls import LastCall
from .cases import Case
from .failures import NotApplicable, SubjectError
from .grad_mode import entered, mode_of, recording, released
from .guard import guarded
from .placement import Placement
from .space import Space

WEIGHTS_UNKNOWN = "its weights are not known; declare them with --weights W_q=<path>"
LAYER_GRADIENTS = ("query", "key", "value")


class LayerSubject:
    """A layer class (or a factory) under test."""

    def __init__(
        self, declaration: Declaration, namespace: Mapping[str, Any], space: Space, *, name: str
    ) -> None:
        self.name, self.declaration, self.space = name, declaration, space
        self.namespace = dict(namespace)
        self.precision: Precision = precision(declaration.precision or "stored")
        self.slots = Slots(declaration.weights)
        assert declaration.new is not None
        self._new = compile(declaration.new, "<declared new>", "eval")
        self._biases: tuple[str, ...] | None = None

    def construct(self, *, d_model: int, heads: int, kv_heads: int, d_k: int, d_v: int, bias: bool = True,
                  dropout: float = 0.0, max_len: int = 64,
                  options: Mapping[str, Any] | None = None) -> nn.Module:  # fmt: skip
        """Construct the user's module with its own initial weights.

        The sizes have the contract's names; `options` are those of a call that the constructor takes instead.

        Raises:
            SubjectError: If the constructor raises.
        """
        names = {
            "d_model": d_model, "heads": heads, "kv_heads": kv_heads, "group": heads // kv_heads, "d_k": d_k,
            "d_v": d_v, "bias": bias, "dropout": dropout, "max_len": max_len,
            **dict.fromkeys(MADE_WITH), "causal": False, **(options or {}),
        }  # fmt: skip
        LastCall.given_sizes = names
        module: nn.Module = guarded(eval, self._new, {**HELPERS, **self.namespace, **names})
        if not isinstance(module, nn.Module):
            raise SubjectError(
                "returned", f"a {type(module).__name__} from its constructor, where a module is wanted"
            )
        if any(is_lazy(parameter) for parameter in module.parameters()):
            self._materialise(module, d_model)
        if "dropout" not in self._new.co_names:
            set_dropout(module, dropout)
        return undo(module, self.declaration)

    def _materialise(self, module: nn.Module, d_model: int) -> None:
        """Call a module once whose parameters get their shapes from the first inputs that they see."""
        inputs = torch.zeros(1, 2, d_model)
        taken = inspect.signature(module.forward).parameters.values()
        needed = [
            p.name for p in taken if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        named = {
            own: inputs for meaning, own in self.declaration.arguments.items() if meaning in LAYER_GRADIENTS
        }
        # Before the names are known: what comes first is attended over, the rest are options.
        first = dict.fromkeys(needed[: len(LAYER_GRADIENTS)], inputs)
        with torch.no_grad():
            guarded(module, **{name: (named or first).get(name) for name in needed})

    def build_any(self, case: Case) -> "Layer":
        """Construct the module for a case, with canonical weights where their places are known.

        Elsewhere every parameter is drawn anew, so that none starts out as zero or unwritten memory.
        """
        weights = case.layer_inputs().weights
        if self.space.has("parameters"):
            return self.build(self.holdable(weights), max_len=max(64, case.q_len, case.kv_len))
        layer = self.build(weights, max_len=max(64, case.q_len, case.kv_len))
        draw_parameters(layer.module, case.generator(6))
        return layer

    def layer_inputs(self, case: Case) -> LayerInputs:
        """Build a case's inputs, without the biases that this layer does not have."""
        require_parameters(self)
        inputs = case.layer_inputs()
        return inputs.replace(weights=self.holdable(inputs.weights))

    def holdable(self, weights: LayerWeights) -> LayerWeights:
        """Return the weights as this layer can hold them: without biases that it has not.

        A layer without an output projection is held to the identity there; that it is missing is for
        the clause `params.output_projection` to say.
        """
        if "W_o" not in self.slots.names:
            eye = torch.eye(weights.d_model, weights.W_o.shape[1], dtype=weights.W_o.dtype)
            weights = weights.replace(W_o=eye, b_o=None)
        if self._biases is None:
            n = {"heads": 2, "kv_heads": 2, "d_k": 2, **self.space.fixed}
            module = self.construct(
                d_model=n["heads"] * n["d_k"],
                heads=n["heads"],
                kv_heads=n["kv_heads"],
                d_k=n["d_k"],
                d_v=n["d_k"],
            )
            self._biases = tuple(n for n in self.slots.present(module) if n.startswith("b_"))
        drop = [
            n
            for n in ("b_q", "b_k", "b_v", "b_o")
            if n not in self._biases and getattr(weights, n) is not None
        ]
        return weights.replace(**dict.fromkeys(drop)) if drop else weights

    def build(self, weights: LayerWeights, *, dropout: float = 0.0, max_len: int = 64) -> "Layer":
        """Construct the module, load canonical weights, and put it in eval mode.

        Raises:
            SubjectError: If the module cannot be constructed or does not have the declared shapes.
        """
        sizes: dict[str, Any] = {
            "d_model": weights.d_model, "heads": weights.heads, "kv_heads": weights.kv_heads,
            "d_k": weights.d_k, "d_v": weights.d_v, "bias": weights.has_bias, "dropout": dropout,
            "max_len": max(max_len, self.space.max_len or 0),
        }  # fmt: skip
        module = self.construct(**sizes)
        module = module.to(device=Placement.device, dtype=weights.W_q.dtype)
        if weights.heads == 1 and self.slots.lacks(module, "W_o"):
            raise NotApplicable("with one head it has no output projection")
        self.slots.write(module, weights)
        return Layer(self, module.eval(), weights, sizes)

    def run_layer(self, inputs: LayerInputs, *, want_weights: bool = False) -> Outcome:
        """Build a fresh layer for the inputs, long enough for them, and call it."""
        longest = max(inputs.query.shape[1], inputs.key_input.shape[1], 64)
        return self.build(inputs.weights, max_len=longest).run(inputs, want_weights=want_weights)


@dataclass
class Layer:
    """One constructed layer with canonical weights in it."""

    subject: LayerSubject
    module: nn.Module
    weights: LayerWeights
    sizes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def remake(self, options: Mapping[str, Any]) -> nn.Module:
        """Return the module as it is constructed with other options, and with the very same parameters.

        It takes the place of the one before; nothing is made anew where the options are those of before.

        Raises:
            SubjectError: If the constructor raises.
        """
        if _same_options(options, self.options):
            return self.module
        with torch.random.fork_rng(devices=[]):
            module = self.subject.construct(**self.sizes, options=options)
        module = module.to(device=Placement.device, dtype=self.weights.W_q.dtype).train(self.module.training)
        held = dict(module.named_parameters())
        for path, parameter in self.module.named_parameters():
            if path in held:
                parent, _, name = path.rpartition(".")
                setattr(module.get_submodule(parent), name, parameter)
        if any(path not in held for path in self.subject.slots.paths):
            self.subject.slots.write(module, self.weights)
        self.module, self.options = module, dict(options)
        return module

    def run(self, inputs: LayerInputs, *, want_weights: bool = False) -> Outcome:
        """Call the layer; the weights of `inputs` are not looked at.

        Raises:
            SubjectError: If it raises.
            NotApplicable: If it does not take one of the arguments.
        """
        tensors = {"query": inputs.query}
        for name in ("key", "value"):
            if getattr(inputs, name) is not None:
                tensors[name] = getattr(inputs, name)
        for name in ("key", "value"):
            if (
                name in self.subject.declaration.arguments
                and name not in tensors
                and self._must_be_given(name)
            ):
                tensors[name] = inputs.key_input if name == "key" else inputs.value_input
        if self._shares_memory(tensors):
            tensors.pop("value")
        call = Caller(
            self.subject.declaration,
            {**self.subject.namespace, "heads": self.weights.heads, "d_k": self.weights.d_k},
            axes=LAYER_AXES,
        )
        return call(
            self.module,
            tensors,
            inputs,
            d=self.weights.d_k,
            want_weights=want_weights,
            remake=self.remake if self.sizes else None,
        )

    def _must_be_given(self, name: str) -> bool:
        """Whether the call always takes this tensor (`forward(q, k, v)`)."""
        try:
            parameter = inspect.signature(self.module.forward).parameters[
                self.subject.declaration.arguments[name]
            ]
        except (KeyError, TypeError, ValueError):
            return False
        return parameter.default is parameter.empty

    def _shares_memory(self, tensors: Mapping[str, Tensor]) -> bool:
        return (
            "value" in tensors
            and "value" not in self.subject.declaration.arguments
            and self.subject.declaration.call is None
        )

    def step(self, tokens: Tensor, cache: Any, **options: Any) -> tuple[Tensor, Any]:
        """Run a cached layer on some more tokens; return its output and the new cache.

        Raises:
            SubjectError: If it raises, or does not return an output and a cache.
        """
        names = self.subject.declaration.arguments
        given = {
            names["query"]: tokens,
            names["cache"]: cache,
            **{names.get(n, n): v for n, v in options.items()},
            **{names[n]: True for n in ("use_cache",) if n in names},
        }
        mode = mode_of(given)
        with entered(mode):
            result = guarded(self.module, **recording(given, mode))
        if not isinstance(result, tuple) or len(result) < 2:
            raise SubjectError(
                "returned", f"a {type(result).__name__}, where an output and a cache are wanted"
            )
        return released(result[0], mode), result[1]

    def gradients(self, inputs: LayerInputs, upstream: Tensor) -> tuple[Outcome, dict[str, Tensor]]:
        """Call the layer and return the gradients of inputs and canonical parameters."""
        names = [name for name in LAYER_GRADIENTS if getattr(inputs, name) is not None]
        leaves = {name: getattr(inputs, name).detach().requires_grad_() for name in names}
        self.module.zero_grad(set_to_none=True)
        outcome = self.run(inputs.replace(**leaves))
        if not outcome.output.requires_grad:
            raise SubjectError("returned", "an output that is cut off from the graph: no gradient can flow")
        guarded(outcome.output.backward, upstream)
        found = {n: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for n, leaf in leaves.items()}
        return outcome, found | self.subject.slots.read(self.module, self.weights, gradient=True)


def _same_options(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two sets of options are the same; masks by their numbers."""
    if set(one) != set(other):
        return False
    pairs = ((one[name], other[name]) for name in one)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def draw_parameters(module: nn.Module, generator: torch.Generator) -> None:
    """Draw every projection anew, keeping the variance of its input; norms stay as they are."""
    with torch.no_grad():
        for path, parameter in module.named_parameters():
            if parameter.dim() < 2 and "norm" in path.lower():
                continue
            factor = parameter.shape[-1] ** -0.5 if parameter.dim() >= 2 else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * factor)


def set_dropout(module: nn.Module, rate: float) -> None:
    """Give every dropout inside a module one rate, where its constructor does not take it."""
    for inner in module.modules():
        if isinstance(inner, nn.Dropout):
            inner.p = rate
        for name, value in list(vars(inner).items()):
            if "drop" in name and isinstance(value, float):
                setattr(inner, name, rate)


def undo(module: nn.Module, declaration: Declaration) -> nn.Module:
    """Take out of a block what is declared to surround its attention: norms, positions in buffers."""
    for path in declaration.bypass or ():
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, nn.Identity())
    for path, number in declaration.neutral.items():
        with torch.no_grad():
            find_tensor(module, path).fill_(number)
    return module


def require_parameters(subject: LayerSubject) -> None:
    """Raise `NotApplicable` where the layer's weights are not known."""
    if not subject.space.has("parameters"):
        raise NotApplicable(WEIGHTS_UNKNOWN)
