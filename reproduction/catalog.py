"""Every experiment by its name: the paper's tables and figures, and the two on public classifiers."""

from reproduction import cifar10_experiments, paper_figures, paper_tables
from reproduction.experiment import Experiment
from secondlook.errors import ExperimentError
from secondlook.registry import did_you_mean

EXPERIMENTS: dict[str, Experiment] = {}
"""Every experiment, in the order of the paper."""

for _experiment in (*paper_tables.TABLES, *paper_figures.FIGURES, *cifar10_experiments.EXPERIMENTS):
    if _experiment.name in EXPERIMENTS:
        raise ExperimentError(f"experiment {_experiment.name!r} is declared twice; choose another name.")
    EXPERIMENTS[_experiment.name] = _experiment

GROUPS = {
    "all": tuple(one.name for one in (*paper_tables.TABLES, *paper_figures.FIGURES)),
    "results": tuple(one.name for one in cifar10_experiments.EXPERIMENTS),
}
"""Names that stand for several experiments: the whole paper, and whatever `results/` keeps."""


def experiments_named(name: str) -> tuple[Experiment, ...]:
    """Return the experiment of that name, or those of a group."""
    if name in GROUPS:
        return tuple(EXPERIMENTS[one] for one in GROUPS[name])
    if name not in EXPERIMENTS:
        known = (*EXPERIMENTS, *GROUPS)
        raise ExperimentError(f"unknown experiment {name!r}; known: {', '.join(known)}.{did_you_mean(name, known)}")
    return (EXPERIMENTS[name],)
