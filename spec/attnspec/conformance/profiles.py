"""How much is tried: three profiles, and how one clause spends its share."""

from dataclasses import dataclass

from .._errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Profile:
    """How hard the suite tries.

    Attributes:
        name: What people type.
        rows: Covering cases a check.
        random: Random cases a check, after those.
        seconds: After so long a check stops early, having run its first rows at least.
        shrink: Cases tried to make a failure small.
    """

    name: str
    rows: int
    random: int
    seconds: float
    shrink: int


PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        # Drawing one random case for each check would take quick a seventh of its time.
        Profile("quick", rows=7, random=0, seconds=1.5, shrink=60),
        Profile("default", rows=17, random=9, seconds=8.0, shrink=150),
        Profile("thorough", rows=90, random=300, seconds=120.0, shrink=500),
    )
}


def profile(name: str) -> Profile:
    """Return the profile called `name`.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in PROFILES:
        raise UnknownNameError("profile", name, PROFILES)
    return PROFILES[name]
