"""The workspace: subsets, stored predictions and provenance."""

import numpy as np

import secondlook as sl
from reproduction import Column
from reproduction.workspace import Provenance, Workspace

VIEWS = sl.ViewSet("identity hflip")
COLUMN = Column("one", "cifar10", ("cifar10-vgg8",), "identity hflip")


def test_all_images_are_both_subsets_and_experimental_ones_come_first(workspace: Workspace) -> None:
    preds = workspace.collect_predictions(COLUMN, "all", VIEWS)
    first = workspace.collect_predictions(COLUMN, "experimental", VIEWS)
    second = workspace.collect_predictions(COLUMN, "evaluation", VIEWS)
    assert sorted(preds.ids) == [f"{number:06d}" for number in range(60)]
    assert np.array_equal(preds.probabilities, np.concatenate([first.probabilities, second.probabilities]))
    assert np.array_equal(preds.labels, np.concatenate([first.labels, second.labels]))
    counts = [workspace.count_experimental(COLUMN, subset) for subset in ("experimental", "evaluation", "all")]
    assert counts == [6, 0, 6]
    assert tuple(preds.ids[:6]) == tuple(workspace.open_subset("cifar10", "experimental").ids)


def test_provenance_covers_each_experiment_separately(workspace: Workspace) -> None:
    classifier, source = workspace.get_classifier("cifar10-vgg8"), workspace.open_subset("svhn", "evaluation")
    digests = {"cifar10-vgg8": classifier.digest, "svhn, evaluation": source.digest}
    assert workspace.pop_provenance().digests == digests
    assert workspace.pop_provenance() == Provenance()
    workspace.open_subset("svhn", "evaluation")  # already open, and used again
    assert workspace.pop_provenance().digests == {"svhn, evaluation": source.digest}
