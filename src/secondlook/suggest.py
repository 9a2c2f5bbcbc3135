"""Finding what the user probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for the closest known name, or nothing where none is close."""
    closest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {closest[0]!r}?" if closest else ""
