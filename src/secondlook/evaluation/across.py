"""Confidences of several classifiers on the same images, side by side and paired."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from secondlook.errors import MetricError
from secondlook.evaluation.estimate import Estimate
from secondlook.evaluation.paired import INTERVALS, RESAMPLINGS, Setting, paired_estimates
from secondlook.evaluation.parts import ALL
from secondlook.evaluation.table import reasons_of, table_of
from secondlook.metrics import Entries, parse_metrics
from secondlook.progress import progress_bar


@dataclass(frozen=True)
class Comparison:
    """Estimates of several entries, each less the first on the same resamplings. `print` shows a table."""

    rows: tuple[Estimate, ...]
    first: str
    level: float

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON can hold it."""
        return {"first": self.first, "level": self.level, "rows": [one.to_dict() for one in self.rows]}

    def __str__(self) -> str:
        return "\n".join([table_of(self.rows, self.first, self.level), *reasons_of(self.rows)])


def compare(
    entries: Entries,
    metrics: Iterable[str],
    *,
    no_probabilities: Collection[str] = (),
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Compare confidences, each with its own correctness, on the same images. name -> (bool [N], float64 [N])

    `no_probabilities` names the entries that calibration metrics have no meaning for.
    """
    if len({len(correct) for correct, _ in entries.values()}) != 1:
        raise MetricError("the entries to compare differ in their number of images; compare runs of the same data.")
    first = next(iter(entries))
    setting = Setting(parse_metrics(metrics), frozenset(no_probabilities), first, level, resamples, seed)
    with progress_bar(INTERVALS, resamples, RESAMPLINGS, enabled=progress) as advance:
        return Comparison(tuple(paired_estimates(ALL, entries, setting, advance)), first, level)
