"""Run experiments: `reproduce` runs one or several by name and writes their results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import secondlook as sl
from reproduction.catalog import find_experiments
from reproduction.comparison import run_comparison
from reproduction.experiment import (
    Comparison,
    ContactSheets,
    Experiment,
    Intensity,
    MetricExplained,
    Piece,
    ReproductionError,
    ResamplingStudy,
    RiskCoverage,
)
from reproduction.figures import (
    run_contact_sheets,
    run_intensity,
    run_metric_explained,
    run_resampling_study,
    run_risk_coverage,
)
from reproduction.inputs import CLASSIFIERS, ClassifierRecord, MissingItem, format_missing, read_classifiers
from reproduction.result_files import describe_circumstances, find_commit, format_for_terminal, write_results
from reproduction.results import PieceResult
from reproduction.workspace import Workspace


@dataclass(frozen=True)
class Reproduction:
    """The results of one or several experiments; `str` formats them for the terminal.

    `out` contains a folder for each experiment that ran, with results.csv, tables.md, tables.tex, plots, page.html and
    circumstances.json.
    """

    out: Path
    experiments: tuple[Experiment, ...]
    results: Mapping[str, tuple[PieceResult, ...]]

    @property
    def missing(self) -> tuple[MissingItem, ...]:
        """Missing items, without duplicates."""
        items = [item for results in self.results.values() for result in results for item in result.missing]
        return tuple(dict.fromkeys(items))

    @property
    def has_run(self) -> bool:
        """Whether there are any results."""
        return any(self._experiment_has_run(experiment) for experiment in self.experiments)

    def _experiment_has_run(self, experiment: Experiment) -> bool:
        return any(result.has_run for result in self.results[experiment.name])

    def to_dict(self) -> dict[str, object]:
        """Return all numbers and missing items, for JSON."""
        return {
            "out": str(self.out),
            "experiments": {
                name: [row.to_dict() for result in results for row in result.rows]
                for name, results in self.results.items()
            },
            "missing": [asdict(item) for item in self.missing],
        }

    def __str__(self) -> str:
        if not self.has_run:
            return f"no experiment can be run yet.\n\n{format_missing(self.missing)}"
        texts = [
            format_for_terminal(experiment, self.results[experiment.name])
            for experiment in self.experiments
            if self._experiment_has_run(experiment)
        ]
        return "\n\n\n".join([*texts, f"Results written to {self.out}"])


def reproduce(
    name: str,
    data_root: str | Path,
    out: str | Path,
    classifiers: Mapping[str, sl.Classifier] | str | Path | None = None,
    *,
    store: str | Path | None = None,
    seed: int = 0,
    indices: str | Path | None = None,
    limit: int | None = None,
    progress: bool = True,
) -> Reproduction:
    """Run an experiment, or a group of them, on local copies of the data sets and weights.

    Parameters
    ----------
    name
        Name of an experiment or a group; see `EXPERIMENTS` and `GROUPS`.
    data_root
        Folder with the official files of the data sets.
    out
        Folder for the results, with a subfolder for each experiment.
    classifiers
        Loaded classifiers by name, or a TOML file with a table for each classifier: its `spec` and the options of
        `load_classifier`.
    store
        Folder of stored predictions, `out/predictions` by default. Stored predictions are not computed again.
    seed
        Random seed of the split, of the bootstrap over views, and of the resamplings of images.
    indices
        File with the indices of the experimental images, or a folder with a file NAME.txt or NAME.npy for each data
        set. By default they are drawn with the random seed.
    limit
        Maximum number of images in each subset, for trial runs.
    progress
        Whether to show a progress bar if standard error is a terminal.
    """
    experiments, target = find_experiments(name), Path(out)
    workspace = Workspace(
        data_root=_check_exists(data_root, "data_root"),
        store=target / "predictions" if store is None else Path(store),
        classifiers=_resolve_classifiers(classifiers),
        seed=seed,
        indices=None if indices is None else _check_exists(indices, "indices"),
        limit=limit,
        progress=progress,
    )
    results, commit = {}, find_commit()
    for experiment in experiments:
        found = results[experiment.name] = run_experiment(experiment, workspace)
        provenance = workspace.pop_provenance()
        if any(result.has_run for result in found):
            circumstances = describe_circumstances(experiment.name, commit, seed, limit, provenance)
            write_results(target / experiment.name, experiment, found, circumstances)
    return Reproduction(target, experiments, results)


def _resolve_classifiers(
    classifiers: Mapping[str, sl.Classifier] | str | Path | None,
) -> Mapping[str, ClassifierRecord | sl.Classifier]:
    if classifiers is None:
        return {}
    if isinstance(classifiers, str | Path):
        return read_classifiers(Path(classifiers))
    for name in classifiers:
        CLASSIFIERS.find(name, where=" in classifiers=")
    return classifiers


def _check_exists(path: str | Path, argument: str) -> Path:
    if not Path(path).exists():
        raise ReproductionError(f"{argument}={str(path)!r} does not exist; pass an existing path.")
    return Path(path)


def run_experiment(experiment: Experiment, workspace: Workspace) -> tuple[PieceResult, ...]:
    """Return the results of every piece; a piece that fails is listed as missing, and the others still run."""
    return tuple(_run_or_report(piece, workspace) for piece in experiment.pieces)


def _run_or_report(piece: Piece, workspace: Workspace) -> PieceResult:
    try:
        return _run_piece(piece, workspace)
    except sl.SecondLookError as error:
        return PieceResult(piece.title, missing=(MissingItem(piece.title, str(error)),))


def _run_piece(piece: Piece, workspace: Workspace) -> PieceResult:
    match piece:
        case Comparison():
            return run_comparison(piece, workspace)
        case Intensity():
            return run_intensity(piece, workspace)
        case RiskCoverage():
            return run_risk_coverage(piece, workspace)
        case MetricExplained():
            return run_metric_explained(piece, workspace)
        case ContactSheets():
            return run_contact_sheets(piece, workspace)
        case ResamplingStudy():
            return run_resampling_study(piece, workspace)
