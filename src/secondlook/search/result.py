"""`SearchResult`: the views that were found, what they gain on images they were not chosen on, and a plain verdict."""

from dataclasses import asdict, dataclass
from pathlib import Path

from secondlook.errors import SearchError
from secondlook.search.diagnosis import Diagnosis
from secondlook.search.judging import LEVEL, CurvePoint, Gain
from secondlook.search.text_table import aligned
from secondlook.views import ViewSet

MOST_REASONS = 10
"""So many views set aside are printed with the result, the rest is counted."""
WORDS = {"better": "better than", "worse": "worse than", "unclear": "no better than"}


@dataclass(frozen=True)
class SearchResult:
    """A found set of views, the best first look first. `print` shows it all; `write` makes a file of the views."""

    views: ViewSet
    weights: tuple[float, ...] | None
    """What each view counts where the strategy weights them; the gains below are for views that count the same."""
    weighted_gain: Gain | None
    """What the weights add on images they were not learnt on."""
    objective: str
    strategy: str
    value: float
    """The objective on images that the views were not chosen on."""
    gains: tuple[Gain, ...]
    """Over the preset (where there is one), over all sane candidates, over the image itself."""
    preset: str | None
    curve: tuple[CurvePoint, ...]
    suggested_stop: int
    """The fewest views that are as good as the best number of them, within one standard error."""
    diagnosis: Diagnosis
    images: int
    errors: int
    folds: int
    shrinkage: float
    """How strongly the objective was held to the mean over all sound candidates; see `search_views`."""
    seed: int

    @property
    def stopped(self) -> ViewSet:
        """The found views up to the suggested stop."""
        return ViewSet(self.views.views[: self.suggested_stop])

    @property
    def verdict(self) -> str:
        """One sentence on whether the search was worth it."""
        first = self.gains[0]
        told = f"The found set is {WORDS[first.verdict]} {first.over}: {_gain_text(first, self.objective)}"
        if first.verdict == "better":
            return f"{told}."
        advice = (
            f"keep {first.over}" if self.preset or first.verdict == "worse" else "it asks the classifier less often"
        )
        return f"{told}, as far as {self.images:,} images with {self.errors:,} errors can tell; {advice}."

    def write(self, path: str | Path, *, stop: bool = False) -> Path:
        """Write the views as a file that every command takes; with `stop` only those up to the suggested stop."""
        written = Path(path)
        if written.suffix != ".txt":
            raise SearchError(f"the file for the views is {str(path)!r}; give it a name that ends in '.txt'.")
        comments = [f"# {line}" for line in (self._chosen_how(), self.verdict)]
        try:
            written.write_text(
                "\n".join([*comments, *(self.stopped if stop else self.views).texts, ""]), encoding="utf-8"
            )
        except OSError as error:
            raise SearchError(f"the views cannot be written to {str(path)!r}: {error.strerror}.") from None
        return written

    def plot(self, path: str | Path) -> Path:
        """Draw the gain over the number of views as a picture; the ending (.png, .svg, .pdf) says which kind."""
        from secondlook.search.curve import draw_curve

        return draw_curve(self, Path(path))

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON can hold it."""
        return {
            **asdict(self),
            "views": list(self.views.texts),
            "diagnosis": self.diagnosis.to_dict(),
            "verdict": self.verdict,
        }

    def _chosen_how(self) -> str:
        aside = len(self.diagnosis.insane)
        return (
            f"{len(self.views)} of {len(self.diagnosis)} views ({aside} set aside), by {self.strategy!r} for "
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
        stop = f"Suggested stop: {self.suggested_stop} views."
        parts = [f"{self._chosen_how()}:", self._table(), judged, *gains, *weighted, stop, self.verdict, *aside]
        return "\n".join(parts)

    def _table(self) -> str:
        weights = self.weights or ()
        rows = [["view", "views", self.objective, "gain", "interval", *(["weight"] if weights else [])]]
        for place, text in enumerate(self.views.texts):
            point = self.curve[place]
            cells = [text, str(point.views), f"{point.value:.4f}", f"{point.gain.gain:+.4f}", _ends(point.gain)]
            rows.append([*cells, *([f"{weights[place]:.3f}"] if weights else [])])
        return aligned(rows)


def _gain_text(gain: Gain, name: str) -> str:
    return f"{name} {gain.gain:+.4f} {_ends(gain)}".rstrip()


def _ends(gain: Gain) -> str:
    return "" if gain.interval is None else f"[{gain.interval.low:+.4f}, {gain.interval.high:+.4f}]"
