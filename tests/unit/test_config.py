"""What a class reads from its config, as its source says."""

from types import SimpleNamespace
from typing import Any

import pytest

from attnspec.recognition.config import Use, config_escapes, config_uses, derived_names


class Inner:
    """Reads one name, from a config that is called otherwise here."""

    def __init__(self, sizes: Any) -> None:
        self.heads = sizes.heads


class Reads:
    """Reads names in every way."""

    def __init__(self, config: Any) -> None:
        self.kept = config
        settings = config
        self.all = (config.a, settings["b"], config.get("c", 8), config.pop("d"), getattr(config, "e"))  # noqa: B009
        self.more = (getattr(config, "f", 1), vars(config)["g"], vars(config).get("h"))
        self.i = config.i if hasattr(config, "i") else 0
        self.j = config["j"] if "j" in config else 0  # noqa: SIM401
        self.inner = Inner(config)

    def later(self) -> Any:
        """Read from what was kept."""
        return self.kept.late


class Walks:
    """Takes every field."""

    def __init__(self, config: Any) -> None:
        for name, value in vars(config).items():
            setattr(self, name, value)


class HandsOn:
    """Hands its config to what has no source here."""

    def __init__(self, config: Any) -> None:
        self.made = SimpleNamespace(config=config)


class Config:
    """Keeps one name and works another one out."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        self.width = width
        self.heads = heads
        self.dropout = dropout
        self.d_k = width // self.heads


def test_names_are_read_in_every_way() -> None:
    attribute, key = Use("attribute", False), Use("subscript", False)
    assert config_uses(Reads, "config") == {
        "a": attribute, "b": key, "c": Use("subscript", True), "d": key, "e": attribute,
        "f": Use("attribute", True), "g": attribute, "h": Use("attribute", True),
        "i": Use("attribute", True), "j": Use("subscript", True), "late": attribute, "heads": attribute,
    }  # fmt: skip


@pytest.mark.parametrize(("cls", "escapes"), [(Reads, True), (Inner, False), (Walks, True), (HandsOn, True)])
def test_config_that_is_taken_whole_may_be_read_anyhow(cls: type, escapes: bool) -> None:
    assert config_escapes(cls, "sizes" if cls is Inner else "config") is escapes


def test_config_class_says_from_what_it_works_something_out() -> None:
    assert {"width", "heads"} <= derived_names(Config)
    assert "dropout" not in derived_names(Config)
