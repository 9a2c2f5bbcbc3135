"""Reruns the tables and figures of the paper, as a client of the public interface of secondlook."""

from reproduction.catalog import EXPERIMENTS, GROUPS
from reproduction.experiment import Column, Comparison, Experiment, ReproductionError
from reproduction.inputs import CLASSIFIERS, DATA_SETS
from reproduction.paper import PublishedValue, load_published_values
from reproduction.runner import Reproduction, reproduce

__all__ = [
    "CLASSIFIERS",
    "DATA_SETS",
    "EXPERIMENTS",
    "GROUPS",
    "Column",
    "Comparison",
    "Experiment",
    "PublishedValue",
    "Reproduction",
    "ReproductionError",
    "load_published_values",
    "reproduce",
]
