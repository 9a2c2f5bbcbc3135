"""Bound on the pixels that are decoded at once, since large images take much memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock


class PixelBudget:
    """A number of pixels that threads share; who needs more than is left waits, and who came first is first."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._changed = Condition()
        self._turn = Lock()

    @contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Wait until so many pixels may be decoded, at most those of the budget, and hold them."""
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._left >= pixels)
            self._left -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._left += pixels
                self._changed.notify_all()
