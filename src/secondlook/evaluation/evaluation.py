"""The result of `evaluate`: every method by every metric, on all images and on parts of them."""

from dataclasses import dataclass

from secondlook.errors import MetricError
from secondlook.evaluation.estimate import Estimate
from secondlook.evaluation.parts import TELLING_APART
from secondlook.evaluation.table import reasons_of, table_of
from secondlook.registry import did_you_mean


@dataclass(frozen=True)
class Evaluation:
    """Estimates with the circumstances they were made under. `print` shows a table for each part."""

    rows: tuple[Estimate, ...]
    baseline: str
    predict_from: str
    top_k: int
    views: int
    level: float
    resamples: int
    seed: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the images that were evaluated; the first is all of them."""
        return tuple(dict.fromkeys(one.part for one in self.rows))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that were compared."""
        return tuple(dict.fromkeys(one.method for one in self.rows))

    def __getitem__(self, where: tuple[str, str] | tuple[str, str, str]) -> Estimate:
        """Return the estimate of (method, metric), on all images or on the part named third."""
        method, metric = where[:2]
        part = where[2] if len(where) == 3 else self.parts[0]
        for one in self.rows:
            if (one.method, one.metric, one.part) == (method, metric, part):
                return one
        known = [f"{one.method}, {one.metric}, {one.part}" for one in self.rows]
        asked = f"{method}, {metric}, {part}"
        raise MetricError(f"the evaluation has no number for {asked!r}.{did_you_mean(asked, known)}")

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON can hold it."""
        names = ("baseline", "predict_from", "top_k", "views", "level", "resamples", "seed")
        return {**{name: getattr(self, name) for name in names}, "rows": [one.to_dict() for one in self.rows]}

    def __str__(self) -> str:
        return "\n\n".join(self._text_of(part) for part in self.parts)

    def _text_of(self, part: str) -> str:
        rows = [one for one in self.rows if one.part == part]
        first = rows[0]
        share = first.errors / first.images
        kind = "from elsewhere" if part == TELLING_APART else "wrong"
        lines = [f"{part}: {first.images:,} images, {first.errors:,} of them {kind} ({100 * share:.2f} %)"]
        if part == self.parts[0]:
            counted = "class" if self.top_k == 1 else f"{self.top_k} leading classes"
            lines.append(
                f"{self.views} views, {counted} by {self.predict_from}; {100 * self.level:g} % intervals from "
                f"{self.resamples:,} resamplings of the images"
            )
        return "\n".join([*lines, table_of(rows, self.baseline, self.level), *reasons_of(rows)])
