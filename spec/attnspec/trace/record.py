"""Record what a run of anyone's attention does, one event an operation, without touching it."""

import random
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .frames import Place, caller, frame_of, place_of, place_of_error
from .tidy import tidy

LARGEST_KEPT = 1 << 21  # elements; a larger tensor is shown, but its values are not compared

_NAMES = {
    "truediv": "div", "rtruediv": "div", "rdiv": "div", "radd": "add", "rsub": "rsub", "rmul": "mul",
    "invert": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or", "rpow": "pow", "rmatmul": "matmul",
    "imul": "mul_", "iadd": "add_", "isub": "sub_", "itruediv": "div_", "idiv": "div_", "setitem": "setitem_",
}  # fmt: skip
_PROPERTIES = frozenset({"T", "mT", "H", "mH", "data", "real"})
_SILENT_NAMES = """
    requires_grad_ retain_grad register_hook backward grad __get__ __set__ __repr__ __format__ __iter__
    __len__ __bool__ __contains__ __deepcopy__ __reduce_ex__ has_names
"""
_SILENT = frozenset(_SILENT_NAMES.split())


@dataclass(frozen=True)
class Run:
    """One run to be recorded.

    Attributes:
        sizes: The contract's axes and their sizes in this run.
        call: Runs the user's code; the module is built and its weights are loaded.
        inputs: Named input tensors. What has `mask` or `bias` in its name is not data that is attended over.
        weights: Named parameters, by canonical name where one is known.
        oracle_steps: The oracle's stage values on the same inputs and weights; None compares nothing.
    """

    sizes: Mapping[str, int]
    call: Callable[[], Any]
    inputs: Mapping[str, Tensor]
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    oracle_steps: Mapping[str, Tensor] | None = None


@dataclass(slots=True)
class TensorRecord:
    """One tensor at one moment: what it looked like, and its values as they were then."""

    shape: tuple[int, ...]
    dtype: str
    contiguous: bool
    storage: int
    value: Tensor | None
    name: str | None = None
    producer: int | None = None
    writer: int | None = None
    data: bool = False


@dataclass(slots=True)
class Event:
    """One operation.

    Attributes:
        index: Its number in the run.
        op: Its name, underscores of operators stripped; a trailing underscore means in place.
        place: Where the user's code called it.
        inputs: Its tensor arguments before the call.
        outputs: Its results, or the tensor that it changed.
        memory: `copy` (new memory), `view`, `same` (the very tensor given) or `in place`.
        settings: Its other arguments, keywords by name, the rest by position.
        error: The exception it raised, if it did.
        data: Whether it depends on the tensors that are attended over.
    """

    index: int
    op: str
    place: Place
    inputs: list[TensorRecord]
    outputs: list[TensorRecord]
    memory: str
    settings: dict[str, Any]
    error: str | None = None
    data: bool = False


@dataclass(slots=True)
class Recording:
    """All events of a run, its result or its exception, and remarks for the reader."""

    events: list[Event]
    output: Tensor | None
    error: BaseException | None
    notes: list[str]

    @property
    def error_place(self) -> tuple[str, int, str]:
        """File, line and source where the exception left the user's code."""
        return place_of_error(self.error) if self.error is not None else ("", 0, "")


def record(run: Run) -> Recording:
    """Run the code once and record every operation; random and grad state are put back.

    An exception of the user's code ends the recording and is kept in it.
    """
    recorder = _Recorder(run)
    output: Any = None
    error: BaseException | None = None
    with _state_kept():
        try:
            output = _invoke(recorder, run.call)
        except Exception as raised:  # the user's code may raise anything; it is a result
            if recorder.is_own(raised):
                raise
            error = raised
    found = list(_tensors(output))
    return Recording(recorder.finish(), found[0] if found else None, error, recorder.notes)


def _invoke(recorder: "_Recorder", call: Callable[[], Any]) -> Any:
    with recorder:
        return call()


@contextmanager
def _state_kept() -> Iterator[None]:
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    numbers, devices = (
        random.getstate(),
        range(torch.cuda.device_count()) if torch.cuda.is_initialized() else (),
    )
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
            random.setstate(numbers)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from _tensors(item)
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)


def operation(func: Any) -> str | None:
    """Return the name that a reader knows an operation by, or None if it is not one."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        return name if name in _PROPERTIES else None
    if name in _SILENT:
        return None
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        return _NAMES.get(name, name)
    return name.split(".")[0]


def _plain(value: Any) -> Any:
    return "tensor" if isinstance(value, Tensor) else value


class _Recorder(TorchFunctionMode):
    """The mode that sees each call; see `record`."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.notes: list[str] = []
        self._alive: list[Any] = []  # keeps ids and addresses from being used twice
        self._values: dict[int, tuple[int, Tensor | None]] = {}
        self._producer: dict[int, int] = {}
        self._made: dict[int, int] = {}  # the first event of a storage, for tensors that no event returned
        self._writer: dict[int, int] = {}
        self._data_storages: set[int] = set()
        self._names: dict[int, str] = {}
        self._fused_calls: set[int] = set()
        self._theirs: list[BaseException] = []
        for name, tensor in (*run.weights.items(), *run.inputs.items()):
            self._names[id(tensor)] = name
            if name in run.inputs and is_data(name, tensor):
                self._data_storages.add(_storage(tensor))
        self._alive.append((run.weights, run.inputs))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = operation(func)
        if op is None:
            return func(*args, **kwargs)
        given = list({id(t): t for t in _tensors((args, kwargs))}.values())
        before = [self._describe(t) for t in given]
        versions = [_version(t) for t in given]
        place = place_of(caller(), _invoke.__code__)
        settings = {
            str(k): _plain(v) for k, v in (*enumerate(args), *kwargs.items()) if not isinstance(v, Tensor)
        }
        if func is torch.nn.functional.multi_head_attention_forward:
            fused = self._run_fused(place)
            return self._opened(func)(*args, **kwargs) if fused is None else fused
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._theirs.append(error)
            self._enter(op, place, before, [], "", settings, f"{type(error).__name__}: {error}")
            raise
        changed = [t for t, v in zip(given, versions, strict=True) if _version(t) != v]
        produced = changed if changed and (result is None or op.endswith("_")) else list(_tensors(result))
        if produced:
            index = len(self.events)
            data = any(b.data for b in before) and not op.endswith("_like")
            memory = self._memory(produced[0], given, bool(changed))
            for tensor in produced:
                self._note_output(tensor, index, data, changed)
            outputs = [self._describe(t) for t in produced]
            self._enter(op, place, before, outputs, memory, settings, None)
        return result

    def _enter(
        self,
        op: str,
        place: Place,
        before: list[TensorRecord],
        outputs: list[TensorRecord],
        memory: str,
        settings: dict[str, Any],
        error: str | None,
    ) -> None:
        data = any(b.data for b in before) and not op.endswith("_like")
        self.events.append(Event(len(self.events), op, place, before, outputs, memory, settings, error, data))

    def _note_output(self, tensor: Tensor, index: int, data: bool, changed: list[Tensor]) -> None:
        self._alive.append(tensor)
        if any(tensor is c for c in changed):
            self._writer[_storage(tensor)] = index
        self._producer[id(tensor)] = index
        self._made.setdefault(_storage(tensor), index)
        if data:
            self._data_storages.add(_storage(tensor))

    def _describe(self, tensor: Tensor) -> TensorRecord:
        storage = _storage(tensor)
        contiguous = tensor.is_contiguous() if tensor.layout is torch.strided else False
        return TensorRecord(
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            contiguous=contiguous,
            storage=storage,
            value=self._snapshot(tensor),
            name=self._names.get(id(tensor)),
            producer=self._producer.get(id(tensor), self._made.get(storage)),
            writer=self._writer.get(storage),
            data=storage in self._data_storages,
        )

    def _snapshot(self, tensor: Tensor) -> Tensor | None:
        version = _version(tensor)
        kept = self._values.get(id(tensor))
        if kept is not None and kept[0] == version and version >= 0:
            return kept[1]
        self._alive.append(tensor)
        try:
            plain = tensor.detach()
            wide = plain.to(torch.float64) if plain.is_floating_point() else plain
            value = None if plain.numel() > LARGEST_KEPT else wide.clone().cpu()
        except (
            RuntimeError,
            NotImplementedError,
            TypeError,
        ):  # a wrapper of functorch, a fake or a nested tensor
            value = None
        self._values[id(tensor)] = (version, value)
        return value

    @staticmethod
    def _memory(tensor: Tensor, given: list[Tensor], changed: bool) -> str:
        if any(tensor is t for t in given):
            return "in place" if changed else "same"
        shared = _storage(tensor) in {_storage(t) for t in given} and tensor.numel() > 0
        return ("in place" if changed else "view") if shared else "copy"

    def _opened(self, func: Any) -> Callable[..., Any]:
        """Return torch's attention function with its inner calls visible to this mode again."""
        names = {**func.__globals__, "has_torch_function": lambda _: False}
        opened = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
        opened.__kwdefaults__ = func.__kwdefaults__

        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return opened(*args, **kwargs)

        return call

    def _run_fused(self, place: Place) -> Any:
        """Take the fused path of `torch.nn.MultiheadAttention` where only this mode is in its way."""
        frame = frame_of(place.owner)
        seen = frame.f_locals if frame is not None else {}
        module = seen.get("self")
        if module is None or "has_torch_function" not in seen.get("why_not_fast_path", ""):
            return None
        query = seen["query"].transpose(0, 1)
        parameters = (
            module.in_proj_weight,
            module.in_proj_bias,
            module.out_proj.weight,
            module.out_proj.bias,
        )
        if torch.is_grad_enabled() and any(t.requires_grad for t in (query, *parameters)):
            return None
        mask, kind = module.merge_masks(seen["attn_mask"], seen["key_padding_mask"], query)
        inputs = [query, *parameters, *(() if mask is None else (mask,))]
        output, weights = torch._native_multi_head_attention(
            query, query, query, module.embed_dim, module.num_heads, *parameters, mask, seen["need_weights"],
            seen["average_attn_weights"], kind,
        )  # fmt: skip
        self._fused_calls.add(cast(int, place.owner))
        before = [self._describe(t) for t in inputs]
        self._note_output(output, len(self.events), True, [])
        after = [self._describe(output)]
        self._enter(
            "_native_multi_head_attention", replace(place, owner=None), before, after, "copy", {}, None
        )
        return output.transpose(0, 1), weights

    def is_own(self, error: BaseException) -> bool:
        """Whether an exception is a mistake of the recorder, not a result of the code under it."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        inside = trace is not None and trace.tb_frame.f_code.co_filename in (
            __file__,
            place_of.__code__.co_filename,
        )
        return inside and not any(error is e for e in self._theirs)

    def finish(self) -> list[Event]:
        """Return the events as a reader counts them; see `tidy`."""
        return tidy(self.events, self._fused_calls)


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or -id(tensor)
    except (RuntimeError, NotImplementedError):
        return -id(tensor)


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors keep no version
        return -1


def is_data(name: str, tensor: Tensor) -> bool:
    """Say whether an input is attended over; masks and biases are not."""
    return tensor.is_floating_point() and "mask" not in name and "bias" not in name
