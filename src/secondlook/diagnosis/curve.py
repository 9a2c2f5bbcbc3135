"""The picture of a search: what each further view gains on images it was not chosen on."""

from pathlib import Path
from typing import TYPE_CHECKING

from secondlook.errors import DiagnosisError

if TYPE_CHECKING:
    from secondlook.diagnosis.result import SearchResult

ENDINGS = (".png", ".svg", ".pdf")


def draw_curve(result: "SearchResult", path: Path) -> Path:
    """Draw the gain over the number of views, with its interval, the suggested stop and what it is compared with."""
    if path.suffix not in ENDINGS:
        raise DiagnosisError(
            f"the curve cannot be drawn to {str(path)!r}; give a name that ends in {' or '.join(ENDINGS)}."
        )
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    views = [point.views for point in result.curve]
    gains = [point.gain.gain for point in result.curve]
    ends = [point.gain.interval for point in result.curve]
    lows = [gain if end is None else end.low for gain, end in zip(gains, ends, strict=True)]
    highs = [gain if end is None else end.high for gain, end in zip(gains, ends, strict=True)]
    axes.fill_between(views, lows, highs, color="#0072b2", alpha=0.15, linewidth=0)
    axes.plot(views, gains, "o-", color="#0072b2", label="the found views, on images they were not chosen on")
    first = result.curve[0].value
    for gain, color in zip(result.gains[:-1], ("#d55e00", "#009e73"), strict=False):
        level = gains[-1] - gain.gain
        axes.axhline(level, color=color, linestyle="--", label=gain.over)
    axes.axvline(result.suggested_stop, color="#666666", linestyle=":", label="suggested stop")
    axes.set(xlabel="views beside the image itself", ylabel=f"gain in {result.objective} over {first:.4f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise DiagnosisError(f"the curve cannot be written to {str(path)!r}: {error.strerror}.") from None
    return path
