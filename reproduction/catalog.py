"""The catalog: all experiments by name, and groups of experiments."""

from dataclasses import dataclass

from reproduction.cifar10 import CIFAR10_EXPERIMENTS
from reproduction.experiment import Experiment, ReproductionError, TitledRecord
from reproduction.paper import PAPER_EXPERIMENTS
from secondlook.registry import Registry

EXPERIMENTS: Registry[Experiment] = Registry("experiment", ReproductionError)
"""Every experiment, in the order of the paper."""

for _experiment in (*PAPER_EXPERIMENTS, *CIFAR10_EXPERIMENTS):
    EXPERIMENTS.add(_experiment)


@dataclass(frozen=True)
class Group(TitledRecord):
    """A name for several experiments."""

    experiments: tuple[str, ...]


GROUPS = {
    group.name: group
    for group in (
        Group("all", "Every table and figure of the paper", tuple(one.name for one in PAPER_EXPERIMENTS)),
        Group(
            "results",
            "Both experiments on public classifiers, the results kept in reproduction/results",
            tuple(one.name for one in CIFAR10_EXPERIMENTS),
        ),
    )
}


def find_experiments(name: str) -> tuple[Experiment, ...]:
    """Return the experiment with this name, or the experiments of a group."""
    if name in GROUPS:
        return tuple(EXPERIMENTS[one] for one in GROUPS[name].experiments)
    return (EXPERIMENTS.find(name, where=f" (groups: {', '.join(GROUPS)})"),)
