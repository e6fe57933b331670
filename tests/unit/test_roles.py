"""Roles of parameters, read from gradients: whatever they are called, whether or not the code is right."""

from itertools import permutations

import pytest
import torch
from einops import rearrange
from torch import nn

from attnspec.recognition.roles import places_by_gradient

SIZES = {"d_model": 15, "heads": 3, "kv_heads": 3, "d_k": 5, "d_v": 5}
ORDERS = ["".join(order) for order in permutations("qkv")]


def attend(q, k, v, heads, *, scale=None):
    """Mix by the formula; `scale` may be wrong."""
    q, k, v = (rearrange(x, "b n (h d) -> b h n d", h=heads) for x in (q, k, v))
    weights = (q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)).softmax(-1)
    return rearrange(weights @ v, "b h n d -> b n (h d)")


def found_in(module, sizes=SIZES):
    """Return the places in a module of float64 with random weights."""
    return places_by_gradient(module.double().eval(), module, sizes)


class Separate(nn.Module):
    """Four linears without a telling name, made in an order without a meaning."""

    def __init__(self, roles, scale=None):
        super().__init__()
        self.roles, self.scale = roles, scale
        for name in "abcd":
            setattr(self, name, nn.Linear(15, 15))

    def forward(self, x):
        held = {role: getattr(self, name) for role, name in zip(self.roles, "abcd", strict=True)}
        mixed = attend(held["q"](x), held["k"](x), held["v"](x), 3, scale=self.scale)
        return held["o"](mixed)


@pytest.mark.parametrize("scale", [None, 1.0, 5.0, -1.0])
@pytest.mark.parametrize("roles", ["qkvo", "okvq", "vqok", "kvoq"])
def test_four_linears_of_one_shape_are_told_apart(roles, scale):
    torch.manual_seed(3)
    places = found_in(Separate(roles, scale))
    for role, name in zip(roles, "abcd", strict=True):
        axes = {"q": "heads*d_k d_model", "k": "kv_heads*d_k d_model", "v": "kv_heads*d_v d_model"}
        assert places[f"W_{role}"] == f"{name}.weight : {axes.get(role, 'd_model heads*d_v')}"
        assert places[f"b_{role}"] == f"{name}.bias"


class Fused(nn.Module):
    """Three parts in one matrix, in any order and layout."""

    def __init__(self, order, layout, transposed):
        super().__init__()
        self.order, self.layout, self.transposed = order, layout, transposed
        self.first = nn.Parameter(torch.randn(15, 45) if transposed else torch.randn(45, 15))
        self.second = nn.Linear(15, 15)

    def forward(self, x):
        projected = x @ (self.first if self.transposed else self.first.T)
        parts = rearrange(projected, f"b n ({self.layout}) -> p b n (h d)", p=3, h=3)
        held = dict(zip(self.order, parts, strict=True))
        return self.second(attend(held["q"], held["k"], held["v"], 3))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("layout", "axes"), [("p h d", "3*heads*d_k"), ("h p d", "heads*3*d_k")])
@pytest.mark.parametrize("order", ORDERS)
def test_a_fused_matrix_shows_its_order_and_its_layout(order, layout, axes, transposed):
    torch.manual_seed(4)
    places = found_in(Fused(order, layout, transposed))
    whole = f"d_model {axes}" if transposed else f"{axes} d_model"
    assert places[f"W_{order}"] == f"first : {whole}"


class Stack(nn.Module):
    """Four matrices in one parameter."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 15, 15))

    def forward(self, x):
        return attend(*(x @ w for w in self.w[:3]), 3) @ self.w[3]


class Convolutions(nn.Module):
    """Linear maps written as convolutions of width 1."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Conv1d(15, 45, 1), nn.Conv1d(15, 15, 1)

    def forward(self, x):
        mixed = attend(*self.inner(x.mT).mT.chunk(3, -1), 3)
        return self.outer(mixed.mT).mT


class EachHead(nn.Module):
    """A module of three linears for each head."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.ModuleList(nn.Linear(15, 5) for _ in range(3)) for _ in range(3))
        self.end = nn.Linear(15, 15)

    def forward(self, x):
        one = [attend(q(x), k(x), v(x), 1) for k, q, v in self.parts]
        return self.end(torch.cat(one, -1))


class Grouped(nn.Module):
    """Two query heads share a key/value head; keys and values in one matrix, values first."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x):
        v, k = (rearrange(t, "b n (h d) -> b n h d", h=2) for t in self.one(x).chunk(2, -1))
        k, v = (t.repeat_interleave(2, 2).flatten(2) for t in (k, v))
        return self.two(attend(self.three(x), k, v, 4))


def test_stacks_convolutions_heads_and_groups():
    torch.manual_seed(5)
    assert [place.split(" :")[0] for place in found_in(Stack()).values()] == ["w.0", "w.1", "w.2", "w.3"]
    assert found_in(Convolutions())["W_qkv"] == "inner.weight : 3*heads*d_k d_model 1"
    heads = found_in(EachHead())
    assert (heads["W_q"], heads["W_k"]) == (
        "parts.*.1.weight : d_k d_model",
        "parts.*.0.weight : d_k d_model",
    )
    grouped = found_in(Grouped(), {"d_model": 12, "heads": 4, "kv_heads": 2, "d_k": 3, "d_v": 3})
    assert grouped["W_vk"] == "one.weight : 2*kv_heads*d_k d_model"
    assert (grouped["W_q"].split(".")[0], grouped["W_o"].split(".")[0]) == ("three", "two")


class Rotated(Separate):
    """Queries and keys are turned by their positions, so that no two rows of a key head are mixed alike."""

    def forward(self, x):
        position = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        turn = torch.cos(position * torch.linspace(0.3, 2.0, 15, dtype=x.dtype))
        return self.d(attend(self.a(x) * turn, self.b(x) * turn, self.c(x), 3))


def test_rotated_keys_are_no_values():
    torch.manual_seed(8)
    places = found_in(Rotated("qkvo"))
    assert [places[f"W_{role}"].split(".")[0] for role in "qkvo"] == ["a", "b", "c", "d"]


class LeavesOneOut(Separate):
    """The last head is lost on the way."""

    def forward(self, x):
        mixed = attend(self.a(x), self.b(x), self.c(x), 3)
        return self.d(torch.cat([mixed[..., :10], torch.zeros_like(mixed[..., 10:])], -1))


def test_rows_that_nothing_comes_of_do_not_hide_the_others():
    torch.manual_seed(7)
    places = found_in(LeavesOneOut("qkvo"))
    assert [places[f"W_{role}"].split(".")[0] for role in "qkvo"] == ["a", "b", "c", "d"]


class Factors(Separate):
    """Every projection is a product of two matrices: none of them is a canonical weight."""

    def __init__(self):
        super().__init__("qkvo")
        for name in "abcd":
            setattr(self, name, nn.Sequential(nn.Linear(15, 15), nn.Linear(15, 15)))


class NoAttention(nn.Module):
    """Nothing meets."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(15, 15), nn.Linear(15, 15)

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize("made", [Factors, NoAttention])
def test_what_gradients_do_not_tell_is_not_guessed(made):
    torch.manual_seed(6)
    assert found_in(made()) is None
