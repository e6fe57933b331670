"""What a person says, or recognition finds, about code that attnspec did not write.

A declaration is plain data: it can be typed on the command line (`--declare key=value`), kept in
`attnspec.toml`, or built in Python. It says how to construct, how to call, where the weights are,
and which conventions the code follows. Shapes are written in the words of the contract; an axis that
is a product is written with `*` (`heads*d_k`).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from ._errors import DeclarationError, UnknownNameError

CHOICES: dict[str, tuple[str, ...]] = {
    "contract": ("core", "layer", "cached"),
    "mask": ("attend", "blocked", "additive"),
    "mask_dtype": ("bool", "int", "float"),
    "padding": ("attend", "blocked"),
    "causal": ("flag", "always", "never"),
    "alignment": ("lower_right", "upper_left"),
    "precision": ("stored", "mixed", "fused"),
}


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """How to use one piece of attention code. `None` means: find out.

    Attributes:
        contract: Which contract it is held to.
        new: Expression that constructs a layer, evaluated in the user's module with `d_model`, `heads`,
            `kv_heads`, `d_k`, `d_v`, `bias`, `dropout`, `max_len` bound, and `_target` for the object itself.
        call: Expression that calls it, with `f` (function or module), `query`, `key`, `value`, `mask`,
            `padding`, `bias`, `causal`, `window`, `softcap`, `scale`, `dropout`, `return_weights` and the
            sizes bound; a name that does not occur in it is a feature that is not there.
        arguments: For each contract argument the name of the user's parameter; instead of `call`.
        output: Expression on `result` that is the output tensor, where it is not its first member.
        returned_weights: Expression on `result` that is the attention weights.
        weights: For each canonical tensor (`W_q`, `b_q`, ..., or fused `W_qkv`, `W_kv`) its place,
            `path` or `path : axes`, for example `c_attn.weight : d_model 3*heads*d_k`.
        layout: Axes of a query as the code takes it, for example `batch q_len heads d_k`.
        output_layout: Axes of the output, where they differ from those of the query.
        mask: What True means: `attend`, `blocked`, or `additive` for a float that is added.
        mask_dtype: What the mask is made of.
        mask_shape: Its axes, for example `batch q_len kv_len`; several that it takes are separated by `|`.
        padding: What True means in a separate mask over `batch kv_len`.
        causal: Whether causality is a flag, always on, or not there.
        alignment: Where query 0 stands when lengths differ.
        max_len: The longest sequence that a buffer allows.
        sizes: `heads`, `kv_heads`, `d_model`, `d_k` of an instance that is already built.
        tap: The submodule whose output is the attention's own, where the block adds a residual or a norm
            behind it; `none` takes the output as it is.
        bypass: Submodules that are taken out (norms), so that the attention inside is checked alone.
        neutral: Buffers that are filled with a number, so that what they do (rotary positions) is undone.
        precision: Name of the precision class.
        dtypes: In which it is to be checked.
        unsupported: Features that are in the signature but are not to be checked, with reasons.
        deviations: Clauses that it breaks on purpose, with reasons.
    """

    contract: str | None = None
    new: str | None = None
    call: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    output: str | None = None
    returned_weights: str | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    layout: str | None = None
    output_layout: str | None = None
    mask: str | None = None
    mask_dtype: str | None = None
    mask_shape: str | None = None
    padding: str | None = None
    causal: str | None = None
    alignment: str | None = None
    max_len: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    tap: str | None = None
    bypass: tuple[str, ...] | None = None
    neutral: Mapping[str, float] = field(default_factory=dict)
    precision: str | None = None
    dtypes: tuple[str, ...] | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)
    deviations: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a value that is not among the choices, and an expression that Python cannot read."""
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise DeclarationError(
                    f"declaration: {name} must be one of {', '.join(choices)}; got {value!r}"
                )
        for dtype in self.dtypes or ():
            if dtype not in DTYPES:
                raise UnknownNameError("dtype", str(dtype), DTYPES)
        for name in EXPRESSIONS:
            value = getattr(self, name)
            if value is not None:
                _require_expression(name, value)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def over(self, other: "Declaration") -> "Declaration":
        """Return this declaration with everything that it leaves open taken from `other`."""
        merged: dict[str, Any] = {}
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            merged[f.name] = (
                {**theirs, **mine} if isinstance(theirs, Mapping) else (theirs if mine is None else mine)
            )
        return Declaration(**merged)

    def as_dict(self) -> dict[str, Any]:
        """Return what is said, as plain data; what is left open is left out."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values if v not in (None, {}, ())}

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], *, where: str = "declaration") -> Self:
        """Build a declaration from plain data.

        Args:
            given: Field names and values; a dotted name (`weights.W_q`) fills a table.
            where: Names the source in messages.

        Raises:
            UnknownNameError: If a key is not a field; the message suggests the nearest.
            DeclarationError: If a value does not fit its field.
        """
        tables = set(_TABLES)
        collected: dict[str, Any] = {}
        for key, value in given.items():
            name, _, inner = key.partition(".")
            if name not in {f.name for f in fields(cls)}:
                raise UnknownNameError(f"{where} key", key, [f.name for f in fields(cls)])
            if name in tables:
                entry = {inner: value} if inner else value
                if not isinstance(entry, Mapping):
                    raise DeclarationError(
                        f"{where}: {name} is a table; write {name}.<key>=<value>, got {key}={value}"
                    )
                if name == "unsupported" and (unknown := [k for k in entry if k not in UNSUPPORTED]):
                    raise UnknownNameError(f"{where} key unsupported", unknown[0], list(UNSUPPORTED))
                if name in _NUMBERS:
                    entry = {k: _number(f"{name}.{k}", v, _NUMBERS[name], where) for k, v in entry.items()}
                collected.setdefault(name, {}).update(entry)
            else:
                collected[name] = _convert(name, value, where)
        return cls(**collected)

    @classmethod
    def from_pairs(cls, pairs: list[str]) -> Self:
        """Build a declaration from `key=value` words, as the command line takes them."""
        given: dict[str, Any] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise DeclarationError(f"--declare takes key=value; got {pair!r}")
            given[key.strip()] = value.strip()
        return cls.from_mapping(given, where="--declare")


DTYPES = ("float32", "float64", "bfloat16", "float16")
EXPRESSIONS = ("new", "call", "output", "returned_weights")
_TABLES = ("arguments", "weights", "unsupported", "deviations", "sizes", "neutral")
# What code may have in its signature and not support; all else that the contract asks it asks of all.
UNSUPPORTED = (
    "mask", "bias", "window", "softcap", "scale", "causal", "dropout", "weights", "grouped", "cross",
    "cross_sources", "value_width", "lengths",
)  # fmt: skip
_NUMBERS = {"sizes": int, "neutral": float}


def _number(name: str, value: Any, kind: type, where: str) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        wanted = "a whole number" if kind is int else "a number"
        raise DeclarationError(f"{where}: {name} must be {wanted}; got {value!r}") from None


def _require_expression(name: str, text: str) -> None:
    try:
        compile(text, f"<declared {name}>", "eval")
    except (SyntaxError, ValueError) as error:
        said = getattr(error, "msg", None) or error
        raise DeclarationError(
            f"declaration: {name} must be one Python expression; got {text!r} ({said})"
        ) from None


def _convert(name: str, value: Any, where: str) -> Any:
    if name == "max_len":
        return _number(name, value, int, where)
    if name in ("dtypes", "bypass"):
        words = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(words, list | tuple):
            raise DeclarationError(f"{where}: {name} must be a list of names; got {value!r}")
        return tuple(words)
    if not isinstance(value, str):
        raise DeclarationError(f"{where}: {name} must be text; got {value!r}")
    return value


def read_declarations(folder: Path) -> dict[str, Declaration]:
    """Return the declarations kept beside the code, by target.

    They stand in `attnspec.toml` under `[declare."FILE:OBJECT"]`, or in `pyproject.toml` under
    `[tool.attnspec.declare."FILE:OBJECT"]`.

    Raises:
        DeclarationError: If a file is not valid TOML, or holds something else where a table belongs.
    """
    found: dict[str, Declaration] = {}
    for name, path in (("pyproject.toml", ("tool", "attnspec", "declare")), ("attnspec.toml", ("declare",))):
        file = folder / name
        if not file.is_file():
            continue
        try:
            table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DeclarationError(f"{file}: not valid TOML: {error}") from None
        for key in path:
            table = table.get(key, {}) if isinstance(table, Mapping) else table
        if not isinstance(table, Mapping):
            raise DeclarationError(f"{name}: {'.'.join(path)} must be a table of targets; got {table!r}")
        for target, given in table.items():
            if not isinstance(given, Mapping):
                raise DeclarationError(
                    f'{name}: write [{".".join(path)}."{target}"] and the keys below it; got {given!r}'
                )
            found[target] = Declaration.from_mapping(given, where=f"{name} [{target}]")
    return found
