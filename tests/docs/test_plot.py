"""Attention maps."""

from pathlib import Path

import pytest
import torch

from attnspec import AttnspecError, DtypeError, ShapeError

pytest.importorskip("matplotlib", reason="matplotlib is not installed: nox -s docs installs it")

from safetensors.torch import save_file

from attnspec.plot import plot_file, plot_weights


def weights(*shape: int) -> torch.Tensor:
    """Return weights of a shape."""
    torch.manual_seed(0)
    return torch.randn(shape).softmax(-1)


@pytest.mark.parametrize(("shape", "heads"), [((2, 5, 3, 7), 5), ((3, 7, 11), 3), ((1, 1, 1, 1), 1)])
def test_plot_weights_draws_a_map_a_head(shape: tuple[int, ...], heads: int) -> None:
    given = weights(*shape)
    figure = plot_weights(given)
    maps = [ax.images[0].get_array() for ax in figure.axes if ax.images]
    assert len(maps) >= heads
    batched = given if given.dim() == 4 else given[None]
    assert all(
        torch.allclose(torch.as_tensor(m.data), w.double()) for m, w in zip(maps, batched[0], strict=False)
    )


def test_plot_weights_takes_the_sample() -> None:
    given = weights(3, 2, 4, 4)
    drawn = plot_weights(given, sample=2).axes[0].images[0].get_array()
    assert torch.allclose(torch.as_tensor(drawn.data), given[2, 0].double())


def test_plot_weights_counts_the_keys_that_a_head_looks_at() -> None:
    even = torch.full((1, 1, 3, 8), 1 / 8)
    assert "8.0 keys" in plot_weights(even).axes[0].get_title()
    assert "0.0 keys" in plot_weights(torch.zeros(1, 1, 3, 8)).axes[0].get_title()


def test_plot_weights_refuses_what_is_no_map() -> None:
    with pytest.raises(ShapeError, match=r"not empty; got \(3, 3\)"):
        plot_weights(weights(3, 3))
    with pytest.raises(ShapeError, match="got 2, batch is 2"):
        plot_weights(weights(2, 1, 3, 3), sample=2)
    with pytest.raises(DtypeError, match=r"got torch\.int64"):
        plot_weights(torch.ones(1, 1, 2, 2, dtype=torch.int64))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_file_writes_a_picture(tmp_path: Path, ending: str) -> None:
    save_file({"weights": weights(1, 2, 3, 3), "other": weights(2, 2)}, tmp_path / "w.safetensors")
    plot_file(tmp_path / "w.safetensors", tmp_path / f"maps.{ending}")
    assert (tmp_path / f"maps.{ending}").stat().st_size > 1000


def test_plot_file_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(AttnspecError, match="cannot be read as safetensors"):
        plot_file(tmp_path / "missing.safetensors", tmp_path / "x.png")
    save_file({"a": weights(2, 2), "b": weights(2, 2)}, tmp_path / "w.safetensors")
    with pytest.raises(AttnspecError, match="it holds: a, b"):
        plot_file(tmp_path / "w.safetensors", tmp_path / "x.png")
    save_file({"a": weights(1, 1, 2, 2)}, tmp_path / "one.safetensors")
    with pytest.raises(AttnspecError, match="cannot be written"):
        plot_file(tmp_path / "one.safetensors", tmp_path / "x.nonsense")
