"""Experiments: the paper's tables and figures as data, run by one runner and set beside the published numbers."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook.experiments.catalogue import EXPERIMENTS, GROUPS
    from secondlook.experiments.experiment import Column, Experiment
    from secondlook.experiments.published import Published, published_values
    from secondlook.experiments.reproducing import Reproduction, reproduce

__all__ = [
    "EXPERIMENTS",
    "GROUPS",
    "Column",
    "Experiment",
    "Published",
    "Reproduction",
    "published_values",
    "reproduce",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "EXPERIMENTS": "secondlook.experiments.catalogue",
        "GROUPS": "secondlook.experiments.catalogue",
        "Column": "secondlook.experiments.experiment",
        "Experiment": "secondlook.experiments.experiment",
        "Published": "secondlook.experiments.published",
        "Reproduction": "secondlook.experiments.reproducing",
        "published_values": "secondlook.experiments.published",
        "reproduce": "secondlook.experiments.reproducing",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
