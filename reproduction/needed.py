"""What an experiment needs from the user, and how to say exactly what is missing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NeededFile:
    """A file or folder below the data root: where it is put, where it is looked for as well, its size, its origin."""

    path: str
    size: str
    origin: str
    also: tuple[str, ...] = ()

    def is_below(self, root: Path) -> bool:
        """Whether it lies in one of its places."""
        return any((root / place).exists() for place in (self.path, *self.also))

    def instruction(self, root: Path) -> str:
        """Say where to put what."""
        return f"put {root / self.path} ({self.size}): {self.origin}"


@dataclass(frozen=True)
class Missing:
    """Something that an experiment could not use: what it is, why it is not there, and the steps to get it."""

    what: str
    why: str
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"- {self.what}: {self.why}", *("    " + line for line in self._lines())])

    def _lines(self) -> list[str]:
        return [line for step in self.steps for line in step.splitlines()]


def missing_text(missing: tuple[Missing, ...]) -> str:
    """Return the list of what is missing, each thing once."""
    return "\n".join(["Missing:", *map(str, dict.fromkeys(missing))]) if missing else ""
