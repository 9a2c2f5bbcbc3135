"""`SearchResult`: the found views, their gains, and the verdict on whether to use them."""

from dataclasses import asdict, dataclass
from pathlib import Path

from secondlook.diagnosis.diagnosis import Diagnosis, count_views
from secondlook.diagnosis.gains import LEVEL, THE_IMAGE, CurvePoint, Gain, format_gain, format_gain_interval
from secondlook.errors import DiagnosisError
from secondlook.tables import TextTable, format_difference, format_html, format_value
from secondlook.views import ViewSet

MAX_HARMFUL_LINES = 10
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class SearchResult:
    """The result of `search_views`. `print` shows all of it, `write` saves the views to use, `plot` draws the gains."""

    found: ViewSet
    """The identity and the chosen views, in the order in which they were chosen: the most useful first."""
    kept: ViewSet | None
    """The preset, if it is used: no better views were found, or only worse ones than the image alone."""
    used: str
    """Name of the views to use: 'the found views', "the preset 'cifar10'", 'the image alone', ..."""
    views: ViewSet
    """The views to use."""
    worse: dict[str, Gain]
    """Views that would be preferred but are worse than the image alone, by name, with their gain over it."""
    objective: str
    value: float
    """Objective of the found views on images they were not chosen on."""
    gains: tuple[Gain, ...]
    """Gains of the found views over the preset (if any), the mean over all usable views, and the image alone."""
    preset: str | None
    curve: tuple[CurvePoint, ...]
    """Objective and gain with 0, 1, 2, ... chosen views besides the image itself."""
    suggested_stop: int
    """The fewest found views that are worse than the best number of them by at most one standard error."""
    diagnosis: Diagnosis
    images: int
    errors: int
    folds: int
    seed: int

    @property
    def verdict(self) -> str:
        """One sentence on whether better views were found, and which views to use."""
        sample = f"on {self.images:,} images with {self.errors:,} errors"
        if self.worse:
            gains = " and ".join(f"{name} ({self._describe(gain)})" for name, gain in self.worse.items())
            return f"Worse than {THE_IMAGE} {sample}: {gains}; {self._advice()}."
        first = self.gains[0]
        if first.verdict == "better":
            return f"The found views are better than {first.over}: {self._describe(first)}."
        return (
            f"The found views are not clearly better than {first.over}: {self._describe(first)} {sample}; "
            f"{self._advice()}."
        )

    def _describe(self, gain: Gain) -> str:
        text = format_gain(gain)
        return f"the same {self.objective}" if text == "same" else f"{self.objective} {text}"

    def _advice(self) -> str:
        if self.kept is not None:
            return f"{self.used} is kept"
        if self.worse:
            return f"use {self.used}"
        if self.preset is not None:
            return f"{self.gains[0].over} exceeds the budget or has harmful views, so the found views are used"
        if len(self.views) < len(self.diagnosis.usable):
            return "the found views need fewer classifier calls"
        return "the found views are used"

    def write(self, path: str | Path) -> Path:
        """Write the views to use to a .txt file, which can be passed wherever views are expected."""
        target = Path(path)
        if target.suffix != ".txt":
            raise DiagnosisError(f"cannot write the views to {str(path)!r}; expected a file name that ends in '.txt'.")
        lines = [f"# {self._summary()}", f"# {self.verdict}", *self.views.texts, ""]
        try:
            target.write_text("\n".join(lines), encoding="utf-8")
        except OSError as error:
            raise DiagnosisError(f"cannot write the views to {str(path)!r}: {error.strerror}.") from None
        return target

    def plot(self, path: str | Path) -> Path:
        """Draw the gain over the number of views to a .png, .svg or .pdf file."""
        target = Path(path)
        if target.suffix not in PLOT_SUFFIXES:
            raise DiagnosisError(
                f"cannot draw the gains to {str(path)!r}; expected a file name that ends in {', '.join(PLOT_SUFFIXES)}."
            )
        try:
            self._draw(target)
        except OSError as error:
            raise DiagnosisError(f"cannot write the plot to {str(path)!r}: {error.strerror}.") from None
        return target

    def _draw(self, path: Path) -> None:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        views = [point.views for point in self.curve]
        gains = [point.gain.gain for point in self.curve]
        lows = [point.gain.interval.low if point.gain.interval else point.gain.gain for point in self.curve]
        highs = [point.gain.interval.high if point.gain.interval else point.gain.gain for point in self.curve]
        axes.fill_between(views, lows, highs, color="#0072b2", alpha=0.15, linewidth=0)
        axes.plot(views, gains, "o-", color="#0072b2", label="found views, on held-out images")
        for gain, color in zip(self.gains[:-1], ("#d55e00", "#009e73"), strict=False):
            axes.axhline(gains[-1] - gain.gain, color=color, linestyle="--", label=gain.over)
        axes.axvline(self.suggested_stop, color="#666666", linestyle=":", label="suggested stop")
        axes.set(
            xlabel="views besides the image itself",
            ylabel=f"gain in {self.objective} over {self.curve[0].value:.4f}",
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize="small")
        figure.savefig(path, dpi=150)

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain values for JSON."""
        return {
            **asdict(self),
            "found": list(self.found.texts),
            "kept": None if self.kept is None else list(self.kept.texts),
            "views": list(self.views.texts),
            "diagnosis": self.diagnosis.to_dict(),
            "verdict": self.verdict,
        }

    def _blocks(self) -> list[object]:
        return [
            f"{self._summary()}:",
            self._tabulate_curve(),
            f"On held-out images ({self.folds} folds, {100 * LEVEL:g} % intervals) {self.objective} is "
            f"{format_value(self.value)}:",
            *(f"  {_compare(gain)} {gain.over} ({format_value(gain.value)})" for gain in self.gains),
            f"Suggested stop: {count_views(self.suggested_stop)} besides the image itself.",
            self.verdict,
            *self.diagnosis.describe_harmful(MAX_HARMFUL_LINES),
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _repr_html_(self) -> str:
        return format_html(self._blocks())

    def _summary(self) -> str:
        chosen, candidates = len(self.found) - 1, len(self.diagnosis) - 1
        return (
            f"{chosen} of {count_views(candidates)} ({len(self.diagnosis.harmful)} harmful) chosen by {self.objective} "
            f"on {self.images:,} images with {self.errors:,} errors, seed {self.seed}"
        )

    def _tabulate_curve(self) -> TextTable:
        rows = [["view", "views", self.objective, "gain", "interval"]]
        for text, point in zip(self.found.texts, self.curve, strict=False):
            gain = format_difference(point.gain.gain)
            rows.append([text, str(point.views), format_value(point.value), gain, format_gain_interval(point.gain)])
        return TextTable(rows, numbers=True)


def _compare(gain: Gain) -> str:
    word, link = ("", "as") if format_difference(gain.gain) == "same" else ("gain ", "over")
    return f"{word}{format_gain(gain)} {link}"
