"""Chapter size: every axis may be 1, some may be 0, and no size is special."""

import torch

from .. import judge
from ..check import check
from ..failures import NotApplicable, Violation
from ..recipes import Recipe

ONES = {
    "batch": (1, 2),
    "heads": ((1, 1), (2, 2), (2, 1)),
    "lengths": ((1, 1), (1, 4), (4, 1), (3, 3)),
    "widths": ((1, 1), (1, 4), (4, 1), (3, 3)),
}


@check("size.one", Recipe({**ONES, "causal": (False, True), "mask": (None, "random", "all")}))
def check_one(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="an axis of size 1 gives a wrong output")


@check("size.one", Recipe({**ONES, "widths": ((1, 1), (3, 3)), "causal": (False, True)}), on="layer")
def check_layer_one(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case), what="an axis of size 1 gives a wrong output")


def _empty(subject, case, **sizes):
    changed = case.replace(**sizes)
    got = subject.run(changed.core_inputs()).output
    judge.require_shape(got, (changed.batch, changed.heads, changed.q_len, changed.d_v))
    if got.dtype != changed.torch_dtype:
        raise Violation(
            "an empty output does not have the dtype of the query", got=str(got.dtype), expected=case.dtype
        )
    if subject.space.has("weights"):
        weights = subject.run(changed.core_inputs(), want_weights=True).weights
        shape = (changed.batch, changed.heads, changed.q_len, changed.kv_len)
        if weights is None:
            raise Violation("no weights come back, though they were asked for", got=None, expected=shape)
        judge.require_shape(weights, shape, what="weights")
    return got


FLAT = {
    "lengths": ((3, 4), (4, 4)),
    "causal": (False, True),
    "mask": (None, "all"),
    "bias": (None, "hqk", "bk"),
    "window": (None, (1, 0)),
    "softcap": (None, 2.0),
    "dtype": ("float32", "bfloat16", "float64", "float16"),
}


@check("size.empty_batch", Recipe(FLAT))
def check_empty_batch(subject, case):
    _empty(subject, case, batch=0)


@check("size.empty_query", Recipe(FLAT))
def check_empty_query(subject, case):
    changes = {"q_len": 0} if subject.space.has("cross") else {"q_len": 0, "kv_len": 0}
    _empty(subject, case, **changes)


@check("size.empty_key", Recipe(FLAT))
def check_empty_key(subject, case):
    got = _empty(subject, case, kv_len=0)
    if bool((got != 0).any()):
        raise Violation(
            "without any key the output is not zero",
            got=float(got[got != 0][0]),
            expected=0.0,
            allowed=0.0,
            wrong=got,
        )


@check("size.empty_layer", Recipe({"causal": (False, True)}), on="layer")
def check_empty_layer(subject, case):
    """An empty batch, and an empty sequence, come back empty."""
    for changes in ({"batch": 0}, {"q_len": 0, "kv_len": 0}):
        changed = case.replace(**changes)
        got = subject.run_layer(subject.layer_inputs(changed)).output
        judge.require_shape(got, (changed.batch, changed.q_len, changed.d_model))


EDGES = tuple(
    (n, m)
    for n, m in (
        (15, 15),
        (16, 17),
        (17, 16),
        (31, 33),
        (33, 31),
        (32, 32),
        (63, 65),
        (64, 64),
        (65, 63),
        (2, 127),
        (3, 128),
        (2, 129),
        (1, 255),
        (2, 257),
        (127, 5),
        (129, 4),
        (2, 512),
        (1, 1025),
        (257, 3),
    )
)


@check(
    "size.blocks",
    Recipe(
        {
            "lengths": EDGES,
            "batch": (1, 2),
            "widths": ((5, 5), (8, 8), (64, 64), (3, 7)),
            "causal": (False, True),
            "mask": (None, "random", "banded", "padding"),
            "values": ("normal",),
        }
    ),
    effort=1.3,
)
def check_blocks(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a length near a block size gives a wrong output")


@check(
    "size.blocks",
    Recipe(
        {
            "lengths": ((513, 513), (1100, 3), (520, 5), (2100, 2), (257, 257)),
            "batch": (1,),
            "heads": ((4, 4), (2, 2), (1, 1), (4, 1)),
            "widths": ((5, 5), (3, 7)),
            "causal": (True, False),
            "mask": (None, "random"),
            "mask_axes": ("bhqk", "qk", "hk"),
            "bias": (None, "hqk", "hk"),
            "scale": (None, 0.3),
            "values": ("normal",),
        }
    ),
    effort=0.5,
)
def check_many_queries(subject, case):
    """Queries are taken in chunks as well, and many scores at once take another path."""
    judge.judge_core(subject, case.core_inputs(), what="many queries give a wrong output")


@check(
    "size.blocks",
    Recipe(
        {
            "lengths": ((2, 2100), (4, 530), (3, 1100), (260, 4), (2, 260), (1, 4100), (600, 600)),
            "batch": (1, 2),
            "heads": ((3, 3), (2, 1)),
            "widths": ((5, 5), (3, 7)),
            "mask": (None, "random", "padding"),
            "causal": (True, False),
            "window": (None, (200, -1), (300, 0)),
            "softcap": (None, 1.5),
            "scale": (None, 0.3),
            "bias": (None, "hqk"),
            "values": ("normal",),
        }
    ),
    effort=0.7,
)
def check_long(subject, case):
    """Long sequences take other paths, and these must know every option."""
    judge.judge_core(subject, case.core_inputs(), what="a long row with an option gives a wrong output")


@check(
    "size.blocks",
    Recipe(
        {
            "lengths": ((1100, 1100), (530, 530), (2100, 2100), (2, 1100)),
            "batch": (1,),
            "heads": ((1, 1),),
            "widths": ((5, 5), (3, 3)),
            "mask": (None, "random", "padding"),
            "causal": (True, False),
            "values": ("normal",),
        }
    ),
    on="layer",
    effort=0.5,
)
def check_layer_long(subject, case):
    """The same for a layer whose core cannot be called alone at such lengths."""
    if "separate" in subject.space.sources:
        raise NotApplicable("its core is called at such lengths")
    judge.judge_layer(
        subject, subject.layer_inputs(case), what="a long row with an option gives a wrong output"
    )


@check(
    "size.tail",
    Recipe({"lengths": EDGES, "batch": (1,), "heads": ((1, 1), (2, 2)), "widths": ((5, 5),)}),
    effort=1.6,
)
def check_tail(subject, case):
    """Give the last keys all the weight: losing one of them must show at any length."""
    inputs = case.core_inputs()
    value = inputs.value.clone()
    value[:, :, -1] += 256.0
    value[:, :, case.kv_len // 2] -= 128.0
    judge.judge_core(
        subject,
        inputs.replace(query=torch.zeros_like(inputs.query), value=value),
        what="a key is lost at the end of a block or of the row",
    )


@check(
    "size.widths",
    Recipe(
        {
            "widths": (
                (15, 15),
                (16, 16),
                (17, 17),
                (31, 33),
                (64, 64),
                (65, 63),
                (96, 96),
                (128, 96),
                (129, 129),
                (256, 256),
                (257, 257),
                (300, 5),
                (5, 300),
            ),
            "lengths": ((3, 5), (4, 4)),
            "batch": (1, 2),
            "causal": (False, True),
        }
    ),
)
def check_widths(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a width near a block size gives a wrong output")


def _coincide(case):
    n = case.heads
    return {
        "batch_heads": {"batch": n},
        "batch_len": {"batch": 3, "q_len": 3, "kv_len": 3},
        "d_heads": {"d_k": n, "d_v": n},
        "len_heads": {"q_len": n, "kv_len": n},
        "len_d": {"q_len": case.d_k, "kv_len": case.d_k},
    }


@check(
    "size.coincidence",
    Recipe(
        {
            "heads": ((3, 3), (4, 2), (2, 2), (6, 3)),
            "values": ("normal",),
            "causal": (False, True),
            "mask": (None, "random"),
            "layout": ("contiguous", "last_two", "transposed"),
            "mask_axes": ("bhqk", "bqk", "hqk", "qk"),
        }
    ),
    effort=0.6,
)
def check_coincidence(subject, case):
    """Sizes that are equal by chance are still different axes."""
    for changes in _coincide(case).values():
        changed = subject.space.fit(case.replace(**changes))
        judge.judge_core(subject, changed.core_inputs(), what="two axes of the same size are confused")


@check(
    "size.many_heads",
    Recipe(
        {
            "heads": ((12, 12), (16, 16), (12, 4), (32, 8), (9, 1), (16, 2), (33, 33), (64, 4), (65, 65)),
            "lengths": ((3, 5), (4, 4)),
            "batch": (1, 2),
            "widths": ((4, 4), (3, 3)),
        }
    ),
)
def check_many_heads(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="many heads give a wrong output")


@check(
    "size.many_sequences",
    Recipe(
        {
            "batch": (7, 17, 33, 65, 130),
            "heads": ((1, 1), (2, 2), (4, 2)),
            "lengths": ((2, 3), (3, 3)),
            "widths": ((3, 3), (2, 4)),
            "causal": (False, True),
            "mask": (None, "random"),
        }
    ),
)
def check_many_sequences(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a sequence of a large batch gets a wrong output")


@check(
    "size.many_sequences",
    Recipe(
        {
            "batch": (1041,),
            "heads": ((63, 63), (63, 21)),
            "lengths": ((1, 1), (2, 1)),
            "widths": ((1, 1), (2, 2)),
            "mask": (None, "all"),
        }
    ),
    effort=0.3,
)
def check_grid(subject, case):
    """Sequences times heads beyond 65,535, where the second axis of a CUDA grid ends."""
    judge.judge_core(subject, case.core_inputs(), what="a sequence of a very large batch gets a wrong output")


@check(
    "size.many_sequences",
    Recipe({"batch": (33,), "lengths": ((65, 65), (64, 70)), "widths": ((2, 2),), "heads": ((1, 1), (2, 2))}),
    on="layer",
    effort=0.3,
)
def check_many_positions(subject, case):
    """More than 2,048 positions in one batch, each projected alike."""
    judge.judge_layer(
        subject, subject.layer_inputs(case), what="a position among very many gets a wrong output"
    )


@check(
    "size.coincidence",
    Recipe({"widths": ((2, 2), (3, 3)), "heads": ((2, 2), (3, 3), (4, 2)), "causal": (False, True)}),
    on="layer",
    effort=0.6,
)
def check_layer_coincidence(subject, case):
    """A sequence as long as the model is wide, a batch as large, and both."""
    n = case.d_model
    for changes in ({"q_len": n, "kv_len": n}, {"batch": n}, {"batch": n, "q_len": n, "kv_len": n}):
        fitted = subject.space.fit(case.replace(**changes))
        if fitted is not None:
            inputs = subject.layer_inputs(fitted)
            judge.judge_layer(subject, inputs, what="two axes of the same size are confused")
