"""The bench: opens data sets and classifiers below the data root, and shows every image to each once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reproduction.classifier_plans import CLASSIFIERS, NAME_FORM, TOML_FORM, ClassifierPlan
from reproduction.data_sets import DATA_SETS
from reproduction.experiment import Column, PartName
from reproduction.needed import Missing
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import ExperimentError, SecondLookError
from secondlook.predictions import ConcatenatedTable, Predictions, StoreEntry, collect, entry_key
from secondlook.sources import Source, Subset, SubsetName, open_source, read_indices
from secondlook.views import ViewSet

PARTS: Mapping[PartName, tuple[PartName, ...]] = {
    "experimental": ("experimental",),
    "evaluation": ("evaluation",),
    "all": ("experimental", "evaluation"),
}
"""The two parts have no image in common, and "all" is both: so no image is shown twice, whoever asks for what."""


@dataclass(frozen=True)
class Used:
    """What an experiment has used.

    Attributes
    ----------
    digests
        Of data sets and classifiers, by key.
    versions
        Under which versions each run of predictions was begun, which may have been elsewhere.
    """

    digests: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass
class Bench:
    """What stays the same over all experiments of one call.

    Attributes
    ----------
    store
        Where predictions are kept; what is in there is not computed again.
    plans
        The user's classifiers by key, before those of CLASSIFIERS; a `Classifier` is taken as it is.
    seed, indices
        What splits a data set: a seed, or a file (or a folder of files KEY.txt or KEY.npy) of experimental indices.
    limit
        At most so many images of each part, to try things out.
    """

    data_root: Path
    store: Path
    plans: Mapping[str, ClassifierPlan | Classifier] = field(default_factory=dict)
    seed: int = 0
    indices: Path | None = None
    limit: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        self._wholes: dict[str, Source] = {}
        self._sources: dict[tuple[str, PartName], Source] = {}
        self._classifiers: dict[str, Classifier] = {}
        self._used = Used()

    def missing_for(self, column: Column) -> tuple[Missing, ...]:
        """Return what a column needs and cannot have; what it can have is open afterwards."""
        attempts = map(self._missing_classifier, column.classifiers)
        return (*self.missing_data(column), *(one for one in attempts if one is not None))

    def missing_data(self, column: Column) -> tuple[Missing, ...]:
        """Return what a column's data set lacks."""
        lacking = self._missing_data(column.data_set)
        return () if lacking is None else (lacking,)

    def predictions(self, column: Column, part: PartName, views: ViewSet) -> Predictions:
        """Return what the column's classifiers answer to these views of a part of its data set."""
        tables = [self._table(key, column.data_set, part, views) for key in column.classifiers]
        return tables[0] if len(tables) == 1 else Predictions(members=tables, views=views)

    def _table(self, classifier: str, data_set: str, part: PartName, views: ViewSet) -> Predictions:
        parts = [self._collected(classifier, data_set, one, views) for one in PARTS[part]]
        return parts[0] if len(parts) == 1 else _one_after_the_other(parts[0], parts[1])

    def _collected(self, classifier: str, data_set: str, part: PartName, views: ViewSet) -> Predictions:
        model, source = self.classifier(classifier), self.source(data_set, part)
        preds = collect(model, source, views, store=self.store, progress=self.progress)
        run = StoreEntry.open(self.store / entry_key(model, source))
        self._used.versions[f"{classifier} on {data_set}, {part}"] = run.manifest.versions
        return preds

    def experimental_images(self, column: Column, part: PartName) -> int:
        """Return how many images of a part are experimental ones; they come first."""
        return 0 if part == "evaluation" else len(self.source(column.data_set, "experimental"))

    def source(self, key: str, part: PartName) -> Source:
        """Return a part of a data set."""
        if (key, part) not in self._sources:
            self._sources[key, part] = self._split(key, part)
        source = self._sources[key, part]
        self._used.digests[f"{key}, {part}"] = source.digest
        return source

    def input_image(self, column: Column, part: PartName) -> Array:
        """Return the first image of a part at the column's input size, uint8 [H, W, C]; as it is with no classifier."""
        image = self.source(column.data_set, part).read(0)
        if self._missing_classifier(column.classifiers[0]) is not None:
            return image
        fitted: Array = self.classifier(column.classifiers[0]).preprocessing.fit([image])[0]
        return fitted

    def training_source(self, key: str) -> Source:
        """Return the training images of a data set."""
        data_set = DATA_SETS[key]
        if data_set.training is None:
            raise ExperimentError(f"data set {key!r} declares no training images, which the distance method needs.")
        return open_source(data_set.training.format(root=data_set.root(self.data_root)), limit=self.limit)

    def classifier(self, key: str) -> Classifier:
        """Return a classifier, loaded once."""
        if key not in self._classifiers:
            self._classifiers[key] = self._loaded(key)
        classifier = self._classifiers[key]
        self._used.digests[key] = classifier.digest
        return classifier

    def layer(self, key: str) -> str | None:
        """Return the layer whose activations the distance method reads, where the user named one."""
        plan = self._plan(key)
        return plan.layer if isinstance(plan, ClassifierPlan) else None

    def take_used(self) -> Used:
        """Return what was used since this was last asked."""
        used, self._used = self._used, Used()
        return used

    def _plan(self, key: str) -> ClassifierPlan | Classifier:
        return self.plans.get(key, CLASSIFIERS[key])

    def _loaded(self, key: str) -> Classifier:
        plan = self._plan(key)
        if isinstance(plan, Classifier):
            return plan
        if plan.spec is None:
            raise ExperimentError("the paper's weights are not public in a common format, so it must be named")
        spec = plan.spec.replace("{root}", str(plan.root(self.data_root)))
        return load_classifier(spec, **dict(plan.options))  # type: ignore[arg-type]

    def _whole(self, key: str) -> Source:
        if key not in self._wholes:
            data_set = DATA_SETS[key]
            self._wholes[key] = open_source(data_set.spec.format(root=data_set.root(self.data_root)))
        return self._wholes[key]

    def _split(self, key: str, part: PartName) -> Source:
        whole, file = self._whole(key), self._indices_file(key)
        if file is None:
            count = DATA_SETS[key].experimental_images(len(whole))
            chosen: SubsetName = "experimental" if part == "experimental" else "evaluation"
            return open_source(whole, part=chosen, count=count, seed=self.seed, limit=self.limit)
        experimental = read_indices(file, len(whole))
        rest = np.setdiff1d(np.arange(len(whole)), experimental)
        positions = experimental if part == "experimental" else rest
        return Subset(whole, positions[: self.limit], f"{whole.spec}: {part} by {file.name}", whole.on_error)

    def _indices_file(self, key: str) -> Path | None:
        if self.indices is None or self.indices.is_file():
            return self.indices
        found = [path for path in (self.indices / f"{key}.txt", self.indices / f"{key}.npy") if path.is_file()]
        if not found:
            raise ExperimentError(
                f"there is no {key}.txt or {key}.npy of experimental indices in {str(self.indices)!r}; add it, or "
                "leave indices= out to split by seed."
            )
        return found[0]

    def _missing_data(self, key: str) -> Missing | None:
        data_set = DATA_SETS[key]
        try:
            self._whole(key)
        except SecondLookError as error:
            root = data_set.root(self.data_root)
            absent = tuple(file.instruction(root) for file in data_set.files if not file.is_below(root))
            why = f"{len(absent)} file(s) are not there" if absent else str(error)
            return Missing(f"data set {data_set.title}", why, absent)
        return None

    def _missing_classifier(self, key: str) -> Missing | None:
        plan = self._plan(key)
        what = f"classifier {key}" + (f" ({plan.title})" if isinstance(plan, ClassifierPlan) else "")
        try:
            if not self.classifier(key).digest:
                return Missing(what, "its answers cannot be kept, since it has no name", (NAME_FORM.format(key=key),))
        except (SecondLookError, OSError) as error:
            if not isinstance(plan, ClassifierPlan) or plan.spec is None:
                steps: tuple[str, ...] = ("say in a TOML file which one stands for it:", TOML_FORM.format(key=key))
                return Missing(what, str(error), steps)
            root = plan.root(self.data_root)
            if plan.file is not None and not plan.file.is_below(root):
                return Missing(what, "its file is not there", (plan.file.instruction(root),))
            return Missing(what, str(error))
        return None


def _one_after_the_other(first: Predictions, second: Predictions) -> Predictions:
    """Return the images of both parts of a data set, read lazily."""
    return Predictions.from_table(
        ConcatenatedTable(first, second),
        first.views,
        labels=np.concatenate([first.labels, second.labels]),
        ids=[*first.ids, *second.ids],
        class_names=first.class_names,
    )
