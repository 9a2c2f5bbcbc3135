"""`reproduce`: everything that `secondlook reproduce NAME` does, as one function."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from reproduction.bench import Bench
from reproduction.catalog import experiments_named
from reproduction.circumstances import circumstances, commit_of_source
from reproduction.classifier_plans import CLASSIFIERS, ClassifierPlan, read_classifiers
from reproduction.experiment import Experiment
from reproduction.findings import Findings
from reproduction.needed import Missing, missing_text
from reproduction.runner import run_experiment
from reproduction.writing import terminal_text, write_findings
from secondlook.classifiers import Classifier
from secondlook.errors import ExperimentError
from secondlook.registry import did_you_mean


@dataclass(frozen=True)
class Reproduction:
    """What came out: findings by the name of the experiment. `str` gives what a terminal shows.

    `out` holds a folder for each experiment that ran: results.csv, tables.md, tables.tex, plots, page.html and
    circumstances.json.
    """

    out: Path
    experiments: tuple[Experiment, ...]
    findings: Mapping[str, tuple[Findings, ...]]

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What could not be run, each thing once."""
        gaps = [gap for found in self.findings.values() for one in found for gap in one.missing]
        return tuple(dict.fromkeys(gaps))

    @property
    def has_run(self) -> bool:
        """Whether anything came out; a command that got nothing done should end with an error code."""
        return any(one.has_run for found in self.findings.values() for one in found)

    def to_dict(self) -> dict[str, object]:
        """Return all numbers, and what is missing for the rest, as JSON can hold them."""
        return {
            "out": str(self.out),
            "experiments": {
                name: [{**asdict(row), "difference": row.difference} for one in found for row in one.rows]
                for name, found in self.findings.items()
            },
            "missing": [asdict(gap) for gap in self.missing],
        }

    def __str__(self) -> str:
        if not self.has_run:
            return f"Nothing could be run yet.\n\n{missing_text(self.missing)}"
        ran = [one for one in self.experiments if any(found.has_run for found in self.findings[one.name])]
        texts = [terminal_text(one, self.findings[one.name]) for one in ran]
        return "\n\n\n".join([*texts, f"Written to {self.out}"])


def reproduce(
    name: str,
    data_root: str | Path,
    out: str | Path,
    classifiers_toml: str | Path | None = None,
    *,
    classifiers: Mapping[str, Classifier] | None = None,
    store: str | Path | None = None,
    seed: int = 0,
    indices: str | Path | None = None,
    limit: int | None = None,
    progress: bool = True,
) -> Reproduction:
    """Run an experiment, or a group of them, on the user's own copies of the data and the weights.

    Parameters
    ----------
    name
        Of an experiment or a group; `EXPERIMENTS` and `GROUPS` list them.
    data_root
        The folder with the official files of the data sets.
    out
        Where results go, a folder for each experiment.
    classifiers_toml
        A file that says which classifier stands for which column: a table per key with `spec` and options.
    classifiers
        Loaded classifiers by key, before those of the file.
    store
        Where predictions are kept, `out/predictions` unless said; what is in there is not computed again.
    seed
        Of the split, of the bootstrap over views, and of the resamplings of images.
    indices
        A file of the experimental images' indices, or a folder of files KEY.txt or KEY.npy, instead of the seed.
    limit
        At most so many images of each part, to try things out.
    progress
        Whether to draw a progress bar, where standard error is a terminal.
    """
    experiments, target = experiments_named(name), Path(out)
    bench = Bench(
        data_root=_existing(data_root, "data_root"),
        store=target / "predictions" if store is None else Path(store),
        plans=_plans(classifiers_toml, classifiers or {}),
        seed=seed,
        indices=None if indices is None else _existing(indices, "indices"),
        limit=limit,
        progress=progress,
    )
    findings, commit = {}, commit_of_source()
    for experiment in experiments:
        found = findings[experiment.name] = run_experiment(experiment, bench)
        used = bench.take_used()
        if any(one.has_run for one in found):
            facts = circumstances(experiment.name, commit, seed, limit, used.digests, used.versions)
            write_findings(target / experiment.name, experiment, found, facts)
    return Reproduction(target, experiments, findings)


def _plans(toml: str | Path | None, loaded: Mapping[str, Classifier]) -> dict[str, ClassifierPlan | Classifier]:
    for key in loaded:
        if key not in CLASSIFIERS:
            raise ExperimentError(
                f"classifiers= names {key!r}, which no experiment has; there are: {', '.join(CLASSIFIERS)}."
                + did_you_mean(key, CLASSIFIERS)
            )
    return {**({} if toml is None else read_classifiers(Path(toml))), **loaded}


def _existing(path: str | Path, argument: str) -> Path:
    if not Path(path).exists():
        raise ExperimentError(f"{argument} is {str(path)!r}, where there is nothing; give a path that exists.")
    return Path(path)
