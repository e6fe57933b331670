"""Events as a reader counts them: what a fused call replaced is left out, one einops call is one event."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import Event


def tidy(events: list["Event"], fused: set[int]) -> list["Event"]:
    """Leave out what a fused call replaced, join what one einops call did, and renumber."""
    kept: list["Event"] = []
    number: dict[int, int] = {}
    joined: tuple[Any, ...] = ()
    sites: set[Any] = set()
    for event in events:
        if event.place.owner in fused and event.place.owner is not None:
            continue
        last = kept[-1] if kept else None
        call = (event.place.api, event.place.site[event.place.depth :])
        if (
            last is not None
            and event.place.api is not None
            and call == joined
            and event.place.site not in sites
        ):
            sites.add(event.place.site)
            known = {id(t.value) for t in last.outputs}
            last.inputs += [t for t in event.inputs if id(t.value) not in known and t.producer != last.index]
            last.outputs, last.error = event.outputs, event.error
            last.memory = last.memory if event.memory in ("same", "view") else event.memory
            last.data |= event.data
            number[event.index] = len(kept) - 1
            continue
        number[event.index] = len(kept)
        joined, sites = call, {event.place.site}
        if event.place.api is not None:
            event.op = event.place.api
        kept.append(event)
    for position, event in enumerate(kept):
        event.index = position
        for tensor in (*event.inputs, *event.outputs):
            tensor.producer = number.get(tensor.producer) if tensor.producer is not None else None
            tensor.writer = number.get(tensor.writer) if tensor.writer is not None else None
    return kept
