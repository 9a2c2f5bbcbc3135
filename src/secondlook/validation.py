"""What pydantic says about a file, as the beginning of a sentence."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def first_fault(error: "ValidationError") -> str:
    """Return where the first fault is and what it is; the others mostly follow from it."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole file"
    return f"{where}: {first['msg'].rstrip('.')}"
