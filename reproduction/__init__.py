"""Experiments: the paper's tables and figures as data, run by one runner and set beside the published numbers."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from reproduction.catalog import EXPERIMENTS, GROUPS
    from reproduction.experiment import Column, Experiment
    from reproduction.published import Published, published_values
    from reproduction.reproducing import Reproduction, reproduce

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
        "EXPERIMENTS": "reproduction.catalog",
        "GROUPS": "reproduction.catalog",
        "Column": "reproduction.experiment",
        "Experiment": "reproduction.experiment",
        "Published": "reproduction.published",
        "Reproduction": "reproduction.reproducing",
        "published_values": "reproduction.published",
        "reproduce": "reproduction.reproducing",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
