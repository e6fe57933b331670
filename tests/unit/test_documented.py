"""What the code's words say of its mask, and which of them are about another argument."""

from collections.abc import Callable

import pytest

from attnspec.loading import Target
from attnspec.recognition.documented import polarity


def same_line(x, key_padding_mask=None, attn_mask=None):  # type: ignore[no-untyped-def]
    """key_padding_mask: batch x keys, True for padding. attn_mask: added to the scores."""


def two_said(x, key_padding_mask=None, attn_mask=None):  # type: ignore[no-untyped-def]
    """key_padding_mask (b, k), True = padding; attn_mask (q, k), True = may attend."""


def entries(x, key_padding_mask=None, attn_mask=None):  # type: ignore[no-untyped-def]
    """Attend.

    Args:
        key_padding_mask: Of shape (batch, keys).
            True means that a key is ignored.

            True marks padding.
        attn_mask (Tensor): Of shape (queries, keys).
            True means that a query may attend.
    """


def other_only(x, pad=None, mask=None):  # type: ignore[no-untyped-def]
    """Attend. In pad, True means ignored."""


def nameless(x, valid=None, mask=None):  # type: ignore[no-untyped-def]
    """valid: which keys are real.

    True means blocked.
    """


def commented(x, key_padding_mask=None, attn_mask=None):  # type: ignore[no-untyped-def]
    # key_padding_mask: of shape (batch, keys).
    # True means padding.
    return x  # attn_mask: True means may attend


@pytest.mark.parametrize(
    ("function", "meaning"),
    [
        (same_line, None),
        (two_said, "attend"),
        (entries, "attend"),
        (other_only, None),
        (nameless, "blocked"),
        (commented, "attend"),
    ],
)
def test_words_about_another_argument_are_not_about_the_mask(
    function: Callable[..., object], meaning: str | None
) -> None:
    assert polarity(Target("mine", function, {}, None)) == meaning
