"""`SearchResult`: the views that were found, what they gain on images they were not chosen on, and a plain verdict."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from secondlook.diagnosis.diagnosis import Diagnosis
from secondlook.diagnosis.judging import LEVEL, CurvePoint, Gain
from secondlook.diagnosis.text_table import aligned
from secondlook.errors import DiagnosisError
from secondlook.views import ViewSet

MOST_REASONS = 10
"""So many views set aside are printed with the result, the rest is counted."""


@dataclass(frozen=True)
class SearchResult:
    """What a search found, and what to use. `print` shows it all; `write` makes a file of the views to use."""

    found: ViewSet
    """The image itself and the found views, the best first look first."""
    kept: ViewSet | None
    """The preset, where nothing was found that is shown to be better than it."""
    weights: tuple[float, ...] | None
    """What each found view counts where the strategy weights them; the gains are for views that count the same."""
    weighted_gain: Gain | None
    """What the weights add on images they were not learnt on."""
    objective: str
    strategy: str
    value: float
    """The objective of the found views on images that they were not chosen on."""
    gains: tuple[Gain, ...]
    """Of the found views: over the preset (where there is one), over all sane candidates, over the image itself."""
    preset: str | None
    curve: tuple[CurvePoint, ...]
    suggested_stop: int
    """The fewest found views that are as good as the best number of them, within one standard error."""
    diagnosis: Diagnosis
    images: int
    errors: int
    folds: int
    shrinkage: float
    """How strongly the objective was held to the mean over all sound candidates; see `search_views`."""
    seed: int

    @property
    def views(self) -> ViewSet:
        """The views to use: those found, or the preset where they are not shown to be better than it."""
        return self.found if self.kept is None else self.kept

    @property
    def stopped(self) -> ViewSet:
        """The views to use up to the suggested stop; a preset that is kept is kept whole."""
        return ViewSet(self.found.views[: self.suggested_stop + 1]) if self.kept is None else self.kept

    @property
    def verdict(self) -> str:
        """One sentence on whether the search was worth it."""
        first = self.gains[0]
        gain = _gain_text(first, self.objective)
        if first.verdict == "better":
            return f"The found set is better than {first.over}: {gain}."
        told = f"No set was found that is better than {first.over}: {gain}"
        known = f"as far as {self.images:,} images with {self.errors:,} errors can tell"
        return f"{told}, {known}; {self._advice(first)}."

    def _advice(self, first: Gain) -> str:
        if self.kept is not None:
            return f"{first.over} is kept"
        if self.preset is not None:
            return (
                f"{first.over} has more views than the budget, or insane ones, so the found set is given all the same"
            )
        return "but the found set asks the classifier less often"

    def write(self, path: str | Path, *, stop: bool = False) -> Path:
        """Write the views as a file that every command takes; with `stop` only those up to the suggested stop."""
        written = Path(path)
        if written.suffix != ".txt":
            raise DiagnosisError(f"the file for the views is {str(path)!r}; give it a name that ends in '.txt'.")
        comments = [f"# {line}" for line in (self._chosen_how(), self.verdict)]
        try:
            written.write_text(
                "\n".join([*comments, *(self.stopped if stop else self.views).texts, ""]), encoding="utf-8"
            )
        except OSError as error:
            raise DiagnosisError(f"the views cannot be written to {str(path)!r}: {error.strerror}.") from None
        return written

    def plot(self, path: str | Path) -> Path:
        """Draw the gain over the number of views as a picture; the ending (.png, .svg, .pdf) says which kind."""
        from secondlook.diagnosis.curve import draw_curve

        return draw_curve(self, Path(path))

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON can hold it."""
        return {
            **asdict(self),
            # JSON has no infinity; null is the confidence held to the pool alone.
            "shrinkage": self.shrinkage if math.isfinite(self.shrinkage) else None,
            "found": list(self.found.texts),
            "kept": None if self.kept is None else list(self.kept.texts),
            "views": list(self.views.texts),
            "diagnosis": self.diagnosis.to_dict(),
            "verdict": self.verdict,
        }

    def _chosen_how(self) -> str:
        aside = len(self.diagnosis.insane)
        return (
            f"{len(self.found) - 1} of {len(self.diagnosis) - 1} views ({aside} set aside), by {self.strategy!r} for "
            f"{self.objective}, on {self.images:,} images with {self.errors:,} errors, seed {self.seed}"
        )

    def __str__(self) -> str:
        judged = (
            f"On images that the views were not chosen on ({self.folds} folds, {100 * LEVEL:g} % intervals), "
            f"{self.objective} is {self.value:.4f}:"
        )
        gains = [f"  {_gain_text(gain, 'gain')} over {gain.over} ({gain.value:.4f})" for gain in self.gains]
        weighted = [] if self.weighted_gain is None else [f"  {_gain_text(self.weighted_gain, 'gain')} by the weights"]
        aside = self.diagnosis.set_aside_lines(MOST_REASONS)
        stop = f"Suggested stop: {self.suggested_stop} views beside the image itself."
        parts = [f"{self._chosen_how()}:", self._table(), judged, *gains, *weighted, stop, self.verdict, *aside]
        return "\n".join(parts)

    def _table(self) -> str:
        weights = self.weights or ()
        rows = [["view", "views", self.objective, "gain", "interval", *(["weight"] if weights else [])]]
        for place, text in enumerate(self.found.texts):
            point = self.curve[place]
            cells = [text, str(point.views), f"{point.value:.4f}", f"{point.gain.gain:+.4f}", _ends(point.gain)]
            rows.append([*cells, *([f"{weights[place]:.3f}"] if weights else [])])
        return aligned(rows)


def _gain_text(gain: Gain, name: str) -> str:
    return f"{name} {gain.gain:+.4f} {_ends(gain)}".rstrip()


def _ends(gain: Gain) -> str:
    return "" if gain.interval is None else f"[{gain.interval.low:+.4f}, {gain.interval.high:+.4f}]"
