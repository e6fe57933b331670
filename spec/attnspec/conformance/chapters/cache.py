"""Chapter cache: any split of a sequence into steps gives what one pass gives."""

import torch

from ... import oracle
from .. import judge
from ..bound_layer import layer_bound
from ..check import check
from ..failures import Violation
from ..recipes import Recipe

LENGTHS = {
    "lengths": ((7, 7), (4, 4), (9, 9), (2, 2), (17, 17), (33, 33)),
    "batch": (1, 2, 3),
    "values": ("normal",),
    "causal": (True,),
}
SPLITS = ((1, 2), (2, 1), (3, 1, 1), (1, 1, 5), (4, 4), (2, 3, 2), (16, 1), (1, 16), (5,))


def exact_whole(subject, inputs):
    """Return the exact causal layer, and how far off each element may be."""
    causal = inputs.replace(causal=True)
    exact = oracle.layer(causal)
    return exact, layer_bound(causal, exact, judge.roundoffs_for(subject, inputs.query.dtype))


def split_of(length, number):
    """Return the sizes of steps that add up to `length`, in the manner of one of `SPLITS`."""
    return cut(length, SPLITS[number % len(SPLITS)])


def cut(length, pattern):
    """Return the sizes of steps that add up to `length`, as far as they go those of a pattern."""
    sizes, left = [], length
    for size in pattern:
        if left:
            sizes.append(min(size, left))
            left -= sizes[-1]
    return [*sizes, left] if left else sizes


def decode(layer, inputs, sizes, **options):
    """Run a sequence in steps and return the outputs side by side, and the last cache."""
    outputs, cache, start = [], None, 0
    for size in sizes:
        output, cache = layer.step(inputs.query[:, start : start + size], cache, **options)
        outputs.append(output)
        start += size
    return torch.cat(outputs, dim=1), cache


def judge_split(subject, case, sizes, *, what, **options):
    """Hold a split run against the exact whole."""
    inputs = subject.layer_inputs(case)
    inputs = inputs.replace(window=options.get("window"))
    exact, allowed = exact_whole(subject, inputs)
    layer = subject.build(inputs.weights, max_len=max(case.q_len, 64))
    got, _ = decode(layer, inputs, sizes, **options)
    judge.require_within(got, exact.output, allowed, what=what)


@check("cache.whole", Recipe(LENGTHS), on="cached")
def check_whole(subject, case):
    judge_split(
        subject, case, [case.q_len], what="one pass with an empty cache differs from the exact causal layer"
    )


@check("cache.split", Recipe(LENGTHS), on="cached", effort=2)
def check_split(subject, case):
    sizes = split_of(case.q_len, case.seed)
    judge_split(subject, case, sizes, what=f"in steps of {sizes} the output differs from that of one pass")


@check("cache.one_by_one", Recipe({**LENGTHS, "lengths": ((7, 7), (4, 4), (9, 9), (2, 2))}), on="cached")
def check_one_by_one(subject, case):
    judge_split(
        subject, case, [1] * case.q_len, what="token by token the output differs from that of one pass"
    )


@check("cache.unchanged", Recipe({**LENGTHS, "lengths": ((7, 7), (4, 4), (9, 9))}), on="cached")
def check_unchanged(subject, case):
    """Two steps from one cache give the same, whatever was decoded in between."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    _, cache = layer.step(inputs.query[:, :2], None)
    first, _ = layer.step(inputs.query[:, 2:3], cache)
    layer.step(inputs.query[:, 3:4] * -2, cache)
    second, _ = layer.step(inputs.query[:, 2:3], cache)
    judge.require_equal(second, first, what="a cache that was used once gives another output: it was changed")


@check(
    "cache.unchanged",
    Recipe({**LENGTHS, "lengths": ((7, 7), (9, 9))}, keep=lambda case: case.q_len > 3),
    on="cached",
)
def check_branches(subject, case):
    """Two continuations of one cache do not meet, and sequences in turn through one module do not either."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    other = inputs.replace(query=torch.cat([inputs.query[:, :2], inputs.query[:, 2:].flip(1) * -1], dim=1))
    first, cache = layer.step(inputs.query[:, :2], None)
    # Two that go on from the same two tokens, and one that begins where they go on.
    sequences, starts = (inputs, other, inputs.replace(query=inputs.query[:, 2:] / 2)), (2, 2, 0)
    outputs, caches = ([first], [first], []), [cache, cache, None]
    for step in range(case.q_len - 2):
        for number, (sequence, start) in enumerate(zip(sequences, starts, strict=True)):
            token = sequence.query[:, start + step : start + step + 1]
            output, caches[number] = layer.step(token, caches[number])
            outputs[number].append(output)
    for number, sequence in enumerate(sequences):
        exact, allowed = exact_whole(subject, sequence)
        judge.require_within(
            torch.cat(outputs[number], dim=1),
            exact.output,
            allowed,
            what="sequences that are decoded in turn meet: one decodes what another left",
        )


@check(
    "cache.split",
    Recipe({**LENGTHS, "lengths": ((70, 70), (140, 140)), "batch": (1, 2), "widths": ((3, 3), (4, 4))}),
    on="cached",
)
def check_long_split(subject, case):
    """Chunks of a prompt and single tokens, once the cache is longer than a block."""
    sizes = cut(case.q_len, (66, 3, 1))
    judge_split(subject, case, sizes, what=f"in steps of {sizes} the output differs from that of one pass")


@check("cache.split", Recipe({**LENGTHS, "lengths": ((7, 7), (9, 9))}), on="cached", effort=0.5)
def check_split_in_training(subject, case):
    """In train mode too, where nothing is dropped."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    layer.module.train()
    exact, allowed = exact_whole(subject, inputs)
    got, _ = decode(layer, inputs, split_of(case.q_len, case.seed))
    judge.require_within(got, exact.output, allowed, what="in train mode a split differs from one pass")


@check("cache.samples", Recipe({**LENGTHS, "batch": (2, 3), "lengths": ((7, 7), (4, 4))}), on="cached")
def check_samples(subject, case):
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    sizes = split_of(case.q_len, case.seed)
    together, _ = decode(layer, inputs, sizes)
    _, allowed = exact_whole(subject, inputs)
    for b in range(case.batch):
        alone, _ = decode(layer, inputs.replace(query=inputs.query[b : b + 1]), sizes)
        judge.require_within(
            alone,
            together[b : b + 1].double(),
            allowed[b : b + 1] * 2,
            what="a sample decodes differently in a batch",
        )


@check(
    "cache.lengths", Recipe({**LENGTHS, "batch": (2, 3), "lengths": ((7, 7), (4, 4), (9, 9))}), on="cached"
)
def check_lengths(subject, case):
    """A prompt padded on the right to the longest, with its true length, then a common step."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    prompt = case.q_len - 1
    lengths = torch.tensor([max(1, prompt - b) for b in range(case.batch)])
    _, cache = layer.step(inputs.query[:, :prompt], None, lengths=lengths)
    got, _ = layer.step(inputs.query[:, prompt:], cache)
    for b, length in enumerate(lengths.tolist()):
        rows = torch.cat([inputs.query[b : b + 1, :length], inputs.query[b : b + 1, prompt:]], dim=1)
        alone = inputs.replace(query=rows)
        exact, allowed = exact_whole(subject, alone)
        judge.require_within(
            got[b : b + 1],
            exact.output[:, length:],
            allowed[:, length:],
            what=f"a sample of length {length} padded to {prompt} decodes differently than alone",
        )


WINDOWED = {
    **LENGTHS,
    "lengths": ((3, 3), (4, 4), (5, 5), (8, 8), (9, 9)),
    "window": ((2, 0), (3, 0), (1, -1), (0, 0)),
}


@check("cache.window", Recipe(WINDOWED), on="cached", effort=2)
def check_window(subject, case):
    sizes = split_of(case.q_len, case.seed)
    judge_split(
        subject,
        case,
        sizes,
        window=case.window,
        what=f"with a window of {case.window}, in steps of {sizes}, the output differs from that of one pass",
    )


@check("cache.window_whole", Recipe(WINDOWED), on="cached")
def check_window_whole(subject, case):
    judge_split(
        subject, case, [case.q_len], window=case.window, what="one windowed pass differs from the exact layer"
    )


@check("cache.grouped", Recipe({**LENGTHS, "heads": ((4, 2), (6, 2), (3, 1))}), on="cached")
def check_grouped(subject, case):
    judge_split(
        subject,
        case,
        split_of(case.q_len, case.seed),
        what="with fewer key/value heads a split differs from one pass",
    )


@check("cache.gradient", Recipe({**LENGTHS, "lengths": ((4, 4), (7, 7)), "dtype": ("float64",)}), on="cached")
def check_gradient(subject, case):
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    upstream = torch.randn(
        case.batch, case.q_len, case.d_model, generator=case.generator(8), dtype=torch.float64
    )
    gradients = []
    for sizes in ([case.q_len], split_of(case.q_len, case.seed)):
        query = inputs.query.detach().requires_grad_()
        output, _ = decode(layer, inputs.replace(query=query), sizes)
        gradients.append(torch.autograd.grad(output, query, upstream)[0])
    from ..bound_gradient import layer_gradient_bounds

    causal = inputs.replace(causal=True)
    allowed = layer_gradient_bounds(
        causal, oracle.layer(causal), upstream, judge.roundoffs_for(subject, torch.float64)
    )
    judge.require_within(
        gradients[1],
        gradients[0],
        allowed["query"] * 2,
        what="the gradient through a split differs from that of one pass",
    )


@check(
    "cache.dtype",
    Recipe({**LENGTHS, "dtype": ("float64", "bfloat16", "float16"), "lengths": ((4, 4), (7, 7))}),
    on="cached",
)
def check_dtype(subject, case):
    inputs = subject.layer_inputs(case)
    got, _ = decode(subject.build(inputs.weights), inputs, split_of(case.q_len, case.seed))
    if got.dtype != case.torch_dtype:
        raise Violation(
            "the output of a step does not have the dtype of its input",
            got=str(got.dtype),
            expected=case.dtype,
        )
    exact, allowed = exact_whole(subject, inputs)
    judge.require_within(
        got, exact.output, allowed, what=f"in {case.dtype} a split is further off than rounding explains"
    )


@check("cache.empty_step", Recipe({**LENGTHS, "lengths": ((4, 4), (7, 7))}), on="cached")
def check_empty_step(subject, case):
    inputs = subject.layer_inputs(case)
    exact, allowed = exact_whole(subject, inputs)
    got, _ = decode(subject.build(inputs.weights), inputs, [2, 0, case.q_len - 2])
    judge.require_within(got, exact.output, allowed, what="a step of no tokens changes what comes after it")
