"""How the images of a source are divided into parts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunking:
    """Parts of `rows` images each; the last one may be smaller."""

    images: int
    rows: int

    @property
    def numbers(self) -> range:
        """The numbers of the parts."""
        return range(-(-self.images // self.rows))

    def indices_of(self, number: int) -> range:
        """Return the indices in the source that a part is about."""
        return range(number * self.rows, min((number + 1) * self.rows, self.images))
