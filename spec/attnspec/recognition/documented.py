"""What the code says about itself in docstrings, comments and names; never what it does."""

import inspect
import re
from typing import Any

from torch import nn

from ..loading import Target
from .names import CALL_NAMES, match_names, parameters_of

SEQ = r"(?:\w*seq\w*|\w*_len|\w*length|len_\w+|L|T|S|t|l|s|time\w*|n_tokens|nq|q)"
BATCH = r"(?:b|B|N|n|bs|bsz|batch\w*|b_size|n_batch\w*)"
HEADS = r"(?:h|H|\w*heads?|nh|nheads|n_head)"
BLOCKED = (
    r"block|mask(ed)? out|ignor|not (to )?attend|exclud|forbid|hidden|padd(ed|ing)|not allowed|disallow"
    r"|not be attended|are masked|is masked"
)
ATTEND = r"attend|keep|kept|visible|allowed|valid|take[s]? part|participat|real token"
VERBS = r"=|:|->|means?|marks?|where|for|at|indicates?|are|is|values?|positions?|entries"


def source_of(target: Target) -> str:
    """Return the source of the object, or of an instance's class, and of its own bases; or nothing."""
    found: Any = target.object
    if not (inspect.isclass(found) or inspect.isfunction(found) or inspect.ismethod(found)):
        found = type(found)
    sources = []
    for part in getattr(found, "__mro__", (found,)):
        if part not in (object, nn.Module):
            try:
                sources.append(inspect.getsource(part))
            except (OSError, TypeError):
                continue
    return "\n".join(sources)


def spoken(target: Target) -> str:
    """Return the docstrings and comments alone."""
    said = re.findall(
        r'"""(.*?)"""|\'\'\'(.*?)\'\'\'|#([^\n]*(?:\n[ \t]*#[^\n]*)*)', source_of(target), re.DOTALL
    )
    texts = [*("".join(strings) for *strings, _ in said), *(re.sub(r"\n[ \t]*#", "\n", c) for *_, c in said)]
    text = "\n\n".join(inspect.cleandoc(words) for words in texts if words)
    return text or (getattr(target.object, "__doc__", None) or "")


def polarity(target: Target) -> str | None:
    """Return what the code's own words say that True means in its mask; None if nothing, or both.

    What they say of another argument, such as padding, is about that one.
    """
    said = set()
    words = " ".join(_about_mask(target))
    for match in re.finditer(rf"\b(True|1|1s|ones|nonzero|non-zero)\b\s*(?:{VERBS})[^.;]{{0,70}}", words):
        phrase = match.group(0).split(" False")[0].split(" 0 ")[0].lower()
        if re.search(BLOCKED, phrase) or re.search(r"(may|can|will|must) not|cannot", phrase):
            said.add("blocked")
        elif re.search(ATTEND, phrase):
            said.add("attend")
    return said.pop() if len(said) == 1 else None


def _about_mask(target: Target) -> list[str]:
    """Return the sentences of the code's words that are about its mask, or about no argument by name."""
    found: Any = target.object
    parameters = {**parameters_of(found), **parameters_of(getattr(found, "forward", found))}
    own = match_names(parameters, {"mask": CALL_NAMES["mask"]}).values() or CALL_NAMES["mask"]
    masks = {name for name in parameters if re.search("mask|pad|valid|len", name)} - set(own)
    masks |= set(CALL_NAMES["padding"])
    entry = rf"(?=(?<![\w.])(?:{'|'.join(map(re.escape, {*parameters, *masks, *own}))})\s*(?:\([^)]*\))?\s*:)"
    kept = []
    for paragraph in _paragraphs(spoken(target).replace("`", "").replace("*", "")):
        about: str | None = None
        for sentence in re.split(rf"(?<=[.;])\s+|{entry}", paragraph):
            named = re.findall(r"\w+", sentence)
            if re.match(entry, sentence):
                about = named[0]
            elif any(name in named for name in own):
                about = next(name for name in named if name in own)
            elif any(name in named for name in masks):
                about = next(name for name in named if name in masks)
            if about is None or about in own:
                kept.append(sentence)
    return kept


def _paragraphs(text: str) -> list[str]:
    """Return runs of lines, each on one line; a line that stands further in goes on with the one before."""
    runs: list[tuple[int, list[str]]] = []
    apart = True
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip())
        if line.strip() and apart and not (runs and depth > runs[-1][0]):
            runs.append((depth, []))
        if line.strip():
            runs[-1][1].append(line.strip())
        apart = not line.strip()
    return [" ".join(lines) for _, lines in runs]


def sequence_first(target: Target) -> bool:
    """Return whether the code says that its inputs are `seq batch …`."""
    text = source_of(target)
    unpacked = rf"\b{SEQ}\s*,\s*{BATCH}\s*,\s*\w+\s*=\s*[\w.]+\.(?:shape|size\(\))"
    listed = rf"[(\[]\s*{SEQ}\s*,\s*{BATCH}\s*,\s*\w+"
    einsum = r"[\"'][qstlni]\s*b\s*[hn]\s*[dc]\b"
    return bool(
        re.search(unpacked, text)
        or re.search(einsum, text)
        or re.search(listed, spoken(target))
        or re.search(r"batch_first\s*(?::\s*bool\s*)?=\s*False", text)
    )


def heads_last(target: Target) -> bool:
    """Return whether the code says, or arranges, that a core takes `batch seq heads d`."""
    text = source_of(target)
    listed = rf"[(\[]?\s*{BATCH}\s*,?\s+{SEQ}\s*,?\s+{HEADS}\s*,?\s+\w+"
    moves = (
        r"\.transpose\((?:1\s*,\s*2|2\s*,\s*1|-3\s*,\s*-2|-2\s*,\s*-3)\)|permute\(0\s*,\s*2\s*,\s*1\s*,\s*3\)"
    )
    einsum = r"[\"'](?:b|B|\.\.\.)\s*[qstlniL]\s*h\s*[dcke]\b"
    return bool(re.search(listed, spoken(target)) or re.search(moves, text) or re.search(einsum, text))


def heads_in_batch(target: Target) -> bool:
    """Return whether the code says, or its products demand, that a core takes `batch*heads seq d`."""
    merged = rf"{BATCH}\s*[*x×·]\s*{HEADS}|\b(?:bh|BH)\b|batch_heads"
    return bool(re.search(merged, source_of(target)) or re.search(r"\b(?:bmm|baddbmm)\(", source_of(target)))


def mask_axes(target: Target) -> str | None:
    """Return the axes that the code's words give its mask, where they are three: `batch q_len kv_len`."""
    match = re.search(
        rf"mask\w*\s*[:=]?[^\n(\[]{{0,40}}[(\[]\s*({BATCH})\s*,\s*({SEQ})\s*,\s*({SEQ})\s*[)\]]",
        spoken(target),
    )
    return "batch q_len kv_len" if match else None


def mentions_residual(target: Target) -> bool:
    """Return whether the code speaks of a residual, or of a skip connection."""
    return bool(
        re.search(
            r"residual|skip[ _]connection|shortcut|add (and|&) norm|pre-?norm|post-?norm|input_tensor",
            source_of(target),
            re.IGNORECASE,
        )
    )
