"""The workspace: opens data sets and classifiers below the data root, and collects their predictions into a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import secondlook as sl
from reproduction.experiment import Column, ImageSubset, ReproductionError, SubsetName
from reproduction.inputs import CLASSIFIERS, DATA_SETS, NAME_INSTRUCTION, TOML_EXAMPLE, ClassifierRecord, MissingItem
from secondlook.arrays import Array

SUBSETS: Mapping[ImageSubset, tuple[SubsetName, ...]] = {
    "experimental": ("experimental",),
    "evaluation": ("evaluation",),
    "all": ("experimental", "evaluation"),
}
"""The disjoint subsets of each choice. Each subset is stored once, so no image is classified twice."""


@dataclass(frozen=True)
class Provenance:
    """The inputs of an experiment.

    Attributes
    ----------
    digests
        Digests of the data sets and classifiers, by name.
    versions
        Package versions of each store entry, possibly from another machine.
    """

    digests: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass
class Workspace:
    """The settings and open inputs shared by all experiments of one call.

    Attributes
    ----------
    store
        Folder of stored predictions.
    classifiers
        The user's classifiers by name; they take precedence over `CLASSIFIERS` and may be loaded already.
    seed, indices
        Random seed of the split, or a file of experimental indices (or a folder of files NAME.txt or NAME.npy, one for
        each data set).
    limit
        Maximum number of images in each subset, for trial runs.
    """

    data_root: Path
    store: Path
    classifiers: Mapping[str, ClassifierRecord | sl.Classifier] = field(default_factory=dict)
    seed: int = 0
    indices: Path | None = None
    limit: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        self._data_sets: dict[str, sl.Source] = {}
        self._subsets: dict[tuple[str, SubsetName], sl.Source] = {}
        self._loaded: dict[str, sl.Classifier] = {}
        self._provenance = Provenance()

    def find_missing(self, column: Column) -> tuple[MissingItem, ...]:
        """Return the missing inputs of a column."""
        classifiers = map(self._find_missing_classifier, column.classifiers)
        return (*self.find_missing_data(column), *(item for item in classifiers if item is not None))

    def find_missing_data(self, column: Column) -> tuple[MissingItem, ...]:
        """Return the data set of a column if it is missing."""
        data_set = DATA_SETS[column.data_set]
        try:
            self._open_data_set(data_set.name)
        except sl.SecondLookError as error:
            root = data_set.find_root(self.data_root)
            absent = tuple(file.instruction(root) for file in data_set.files if not file.exists_in(root))
            reason = f"{len(absent)} file(s) not found" if absent else str(error)
            return (MissingItem(f"data set {data_set.title}", reason, absent),)
        return ()

    def _find_missing_classifier(self, name: str) -> MissingItem | None:
        record = self._classifier_record(name)
        item = f"classifier {name}" + (f" ({record.title})" if isinstance(record, ClassifierRecord) else "")
        try:
            if not self.get_classifier(name).digest:
                reason = "its predictions cannot be stored because it has no name"
                return MissingItem(item, reason, (NAME_INSTRUCTION.format(name=name),))
        except (sl.SecondLookError, OSError) as error:
            if not isinstance(record, ClassifierRecord):
                return MissingItem(item, str(error))
            if record.spec is None:
                example = TOML_EXAMPLE.format(name=name)
                return MissingItem(item, str(error), ("specify it in the classifiers file (TOML):", example))
            root = record.find_root(self.data_root)
            if record.file is not None and not record.file.exists_in(root):
                return MissingItem(item, "file not found", (record.file.instruction(root),))
            return MissingItem(item, str(error))
        return None

    def collect_predictions(self, column: Column, subset: ImageSubset, views: sl.ViewSet) -> sl.Predictions:
        """Return the predictions of the column's classifiers for these views of a subset of its data set."""
        members = [self._collect_member(name, column.data_set, subset, views) for name in column.classifiers]
        return members[0] if len(members) == 1 else sl.Predictions(members=members, views=views)

    def _collect_member(self, classifier: str, data_set: str, subset: ImageSubset, views: sl.ViewSet) -> sl.Predictions:
        first, *others = [self._collect_subset(classifier, data_set, one, views) for one in SUBSETS[subset]]
        if not others:
            return first
        (second,) = others
        labels = np.concatenate([first.labels, second.labels])
        return first.concatenate(second, labels=labels, ids=[*first.ids, *second.ids])

    def _collect_subset(self, classifier: str, data_set: str, subset: SubsetName, views: sl.ViewSet) -> sl.Predictions:
        model, source = self.get_classifier(classifier), self.open_subset(data_set, subset)
        preds = sl.collect(model, source, views, store=self.store, execution=sl.Execution(progress=self.progress))
        assert preds.origin is not None, "they were collected"
        self._provenance.versions[f"{classifier} on {data_set}, {subset}"] = dict(preds.origin.versions)
        return preds

    def count_experimental(self, column: Column, subset: ImageSubset) -> int:
        """Return the number of experimental images in a subset; they come first."""
        return 0 if subset == "evaluation" else len(self.open_subset(column.data_set, "experimental"))

    def open_subset(self, data_set: str, subset: SubsetName) -> sl.Source:
        """Return a subset of a data set, opened once."""
        if (data_set, subset) not in self._subsets:
            self._subsets[data_set, subset] = self._select_subset(data_set, subset)
        source = self._subsets[data_set, subset]
        self._provenance.digests[f"{data_set}, {subset}"] = source.digest
        return source

    def read_example_image(self, column: Column, subset: ImageSubset) -> Array:
        """Return the first image of a subset, uint8 [H, W, C], at the input size if the classifier is available."""
        image = self.open_subset(column.data_set, SUBSETS[subset][0]).read(0)
        if self._find_missing_classifier(column.classifiers[0]) is not None:
            return image
        fitted: Array = self.get_classifier(column.classifiers[0]).preprocessing.fit([image])[0]
        return fitted

    def open_training_source(self, data_set: str) -> sl.Source:
        """Return the training images of a data set."""
        record = DATA_SETS[data_set]
        if record.training is None:
            raise ReproductionError(f"the distance method needs training images, but data set {data_set!r} has none.")
        return sl.open_source(record.training.format(root=record.find_root(self.data_root)), limit=self.limit)

    def get_classifier(self, name: str) -> sl.Classifier:
        """Return a classifier, loaded once."""
        if name not in self._loaded:
            self._loaded[name] = self._load_classifier(name)
        classifier = self._loaded[name]
        self._provenance.digests[name] = classifier.digest
        return classifier

    def get_layer(self, name: str) -> str | None:
        """Return the layer for the distance method, if the user named one."""
        record = self._classifier_record(name)
        return record.layer if isinstance(record, ClassifierRecord) else None

    def pop_provenance(self) -> Provenance:
        """Return the inputs used since the last call."""
        provenance, self._provenance = self._provenance, Provenance()
        return provenance

    def _classifier_record(self, name: str) -> ClassifierRecord | sl.Classifier:
        return self.classifiers.get(name, CLASSIFIERS[name])

    def _load_classifier(self, name: str) -> sl.Classifier:
        record = self._classifier_record(name)
        if isinstance(record, sl.Classifier):
            return record
        if record.spec is None:
            raise ReproductionError("no default, because the paper's weights are not published in a common format")
        spec = record.spec.replace("{root}", str(record.find_root(self.data_root)))
        return sl.load_classifier(spec, **dict(record.options))  # type: ignore[arg-type]

    def _open_data_set(self, name: str) -> sl.Source:
        if name not in self._data_sets:
            data_set = DATA_SETS[name]
            self._data_sets[name] = sl.open_source(data_set.spec.format(root=data_set.find_root(self.data_root)))
        return self._data_sets[name]

    def _select_subset(self, name: str, subset: SubsetName) -> sl.Source:
        whole, file = self._open_data_set(name), self._find_indices_file(name)
        if file is None:
            count = DATA_SETS[name].count_experimental(len(whole))
            return sl.open_source(whole, subset=subset, count=count, seed=self.seed, limit=self.limit)
        chosen: Any = sl.open_source(whole, indices=file)
        experimental = chosen.positions
        others = np.setdiff1d(np.arange(len(whole)), experimental)
        positions = experimental if subset == "experimental" else others
        return whole.select(positions[: self.limit], f"{whole.spec}: {subset} by {file.name}")

    def _find_indices_file(self, name: str) -> Path | None:
        if self.indices is None or self.indices.is_file():
            return self.indices
        found = [path for path in (self.indices / f"{name}.txt", self.indices / f"{name}.npy") if path.is_file()]
        if not found:
            raise ReproductionError(
                f"no experimental indices for data set {name!r}: expected {name}.txt or {name}.npy in "
                f"{str(self.indices)!r}; add the file, or split by random seed."
            )
        return found[0]
