"""The work of `create_run`: predictions, chosen views, fitted methods and the evaluation, here or with an engine."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import secondlook
from secondlook.arrays import IntArray
from secondlook.classifiers import Classifier
from secondlook.diagnosis import (
    MAX_IMAGES_FOR_WARNINGS,
    ViewChoice,
    auto_views,
    choose_tuning_images,
    collect_views,
    describe_harmful_views,
    refine_choice,
)
from secondlook.estimators import FittedMethods, needs_fitting
from secondlook.evaluation import (
    Evaluation,
    StatisticsParts,
    SummarizeImages,
    check_divisible,
    evaluate,
    evaluate_statistics,
)
from secondlook.files import compute_checksum
from secondlook.predictions import (
    BatchSize,
    Chunking,
    Engine,
    PredictFrom,
    Predictions,
    check_class_names_match,
    collect,
    collect_summaries,
)
from secondlook.report.run import OOD_PREDICTIONS, PREDICTIONS, STATISTICS, store_key
from secondlook.sources import Source, Subset
from secondlook.views import AUTO, ViewSet, ViewsLike, as_view_set


@dataclass(frozen=True)
class EvaluatedImages:
    """What an evaluation found, besides what it wrote to the folder of the run."""

    evaluation: Evaluation
    views: ViewSet
    choice: ViewChoice | None
    """How the views were chosen; None if they were given."""
    tuning: tuple[str, ...]
    """Ids of the images that were set apart."""
    skipped: tuple[tuple[str, str], ...]
    """Id and reason of each image that could not be read."""
    harmful: str | None
    """A sentence about given views that are harmful."""


@dataclass(frozen=True, eq=False)
class EvaluationJob:
    """The arguments of `create_run`, checked."""

    classifier: Classifier
    source: Source
    ood: Source | None
    folder: Path
    views: ViewsLike
    methods: list[str]
    metrics: Iterable[str]
    predict_from: PredictFrom
    top_k: int
    per_class: bool
    level: float
    resamples: int
    seed: int
    batch_size: BatchSize
    progress: bool
    device: str

    @property
    def groups(self) -> str | None:
        """What to evaluate separately."""
        return "class" if self.per_class else None

    @property
    def must_fit(self) -> bool:
        """Whether images are set apart even if the views are given."""
        return any(map(needs_fitting, self.methods))

    def evaluate_here(self) -> EvaluatedImages:
        """Collect all predictions in this process and evaluate them."""
        store, batch_size, progress = self.folder / PREDICTIONS, self.batch_size, self.progress
        collected = collect_views(
            self.classifier,
            self.source,
            self.views,
            top_k=self.top_k,
            store=store,
            batch_size=batch_size,
            progress=progress,
        )
        preds, choice = collected.preds, collected.choice
        tuning = collected.tuning if choice is not None or self.must_fit else collected.tuning[:0]
        ood = None
        if self.ood is not None:
            store = self.folder / OOD_PREDICTIONS
            ood = collect(self.classifier, self.ood, preds.views, store=store, batch_size=batch_size, progress=progress)
        result = evaluate(
            preds,
            self.methods or None,
            self.metrics,
            predict_from=self.predict_from,
            top_k=self.top_k,
            groups=self.groups,
            ood=ood,
            level=self.level,
            resamples=self.resamples,
            seed=self.seed,
            tuning=tuning if len(tuning) else None,
            progress=progress,
        )
        harmful = describe_harmful_views(preds, top_k=self.top_k) if choice is None else None
        ids = tuple(preds.ids[position] for position in tuning)
        return EvaluatedImages(result, preds.views, choice, ids, preds.skipped, harmful)

    def evaluate_with(self, engine: Engine, *, keep_predictions: bool) -> EvaluatedImages:
        """Let an engine classify all images, and reduce them to statistics in the same pass.

        Views are chosen and methods fitted before, on the tuning images, which are classified once more for that.
        """
        check_divisible(self.methods)
        check_class_names_match(self.classifier.members or (self.classifier,), self.source)
        tuning, choice, views = self._choose_views(engine)
        final = views if choice is None else ViewSet(list(choice.views))
        apart = None if tuning is None else tuning.select(views=final)
        n_outputs = max(1, len(self.classifier.members)) * len(final)
        fitted = FittedMethods.on_images(apart, self.methods or None, n_outputs, self.predict_from, self.top_k)
        # All chosen views are stored, as without an engine, also those that were set aside on more images.
        stored = views if keep_predictions else final
        store = self.folder / PREDICTIONS if keep_predictions else None
        parts, chunking = self._summarize(engine, self.source, stored, store, fitted, final)
        everything = parts.read(chunking)
        assert self.source.labels is not None, "checked by create_run"
        labeled = replace(everything.statistics, labels=self.source.labels[everything.indices])
        ids = frozenset(() if tuning is None else tuning.ids)
        places = np.array([place for place, id_ in enumerate(labeled.ids) if id_ in ids], dtype=np.int64)
        judged = np.delete(np.arange(labeled.n_images), places)
        ood = None
        if self.ood is not None:
            store = self.folder / OOD_PREDICTIONS if keep_predictions else None
            outside, ood_chunking = self._summarize(engine, self.ood, final, store, fitted, final)
            ood = outside.read(ood_chunking).statistics
        result = evaluate_statistics(
            labeled.select(judged) if len(places) else labeled,
            replace(fitted, tuning=places, judged=judged),
            self.metrics,
            groups=self.groups,
            class_names=self.source.class_names,
            ood=ood,
            level=self.level,
            resamples=self.resamples,
            seed=self.seed,
            progress=self.progress,
        )
        harmful = None
        if choice is None:
            preds = self._open(final) if keep_predictions else self._collect_sample(engine, everything.indices, final)
            harmful = describe_harmful_views(preds, top_k=self.top_k)
        tuning_ids = tuple(labeled.ids[place] for place in places)
        return EvaluatedImages(result, final, choice, tuning_ids, tuple(everything.skipped), harmful)

    def _choose_views(self, engine: Engine) -> tuple[Predictions | None, ViewChoice | None, ViewSet]:
        """Return the predictions for the tuning images, if there are any, and the views."""
        indices = choose_tuning_images(self.source)
        sample = self._select(indices) if len(indices) else self.source
        is_auto = isinstance(self.views, str) and self.views == AUTO
        choice = None
        store, batch_size, progress = self.folder / PREDICTIONS, self.batch_size, self.progress
        if is_auto:
            choice = auto_views(
                self.classifier,
                sample,
                top_k=self.top_k,
                store=store,
                batch_size=batch_size,
                progress=progress,
                device=self.device,
                engine=engine,
            )
        views = as_view_set(self.views if choice is None else choice.views)
        if choice is None and not self.must_fit:
            return None, None, views
        preds = collect(
            self.classifier,
            sample,
            views,
            store=store,
            batch_size=batch_size,
            progress=progress,
            on_error=self.source.on_error,
            device=self.device,
            engine=engine,
        )
        if choice is not None:
            choice = refine_choice(choice, preds, top_k=self.top_k)
        return (preds if len(indices) else None), choice, views

    def _select(self, indices: IntArray) -> Source:
        return Subset(self.source, indices, self.source.spec, self.source.on_error)

    def _summarize(
        self,
        engine: Engine,
        source: Source,
        views: ViewSet,
        store: Path | None,
        fitted: FittedMethods,
        evaluated: ViewSet,
    ) -> tuple[StatisticsParts, Chunking]:
        """Classify all images of a source, and return their statistics for the evaluated views, and the chunks."""
        is_judged = source is self.source
        key = compute_checksum(
            {
                "secondlook": secondlook.__version__,
                "predictions": store_key(self.classifier, source),
                "views": evaluated.texts,
                "methods": fitted.options,
                "predict_from": fitted.predict_from,
                "top_k": fitted.top_k,
                "is_judged": is_judged,
            }
        )
        summarize = SummarizeImages(fitted, evaluated.texts, is_judged)
        parts = StatisticsParts(self.folder / STATISTICS / key[:16], source, summarize)
        chunking = collect_summaries(
            self.classifier,
            source,
            views,
            parts,
            engine,
            store=store,
            batch_size=self.batch_size,
            device=self.device,
            progress=self.progress,
        )
        if store is not None and not all(map(parts.has, chunking.numbers)):
            entry = store_key(self.classifier, source)
            parts.complete(chunking, Predictions.open(store, entry=entry, views=list(views.texts)))
        return parts, chunking

    def _open(self, views: ViewSet) -> Predictions:
        entry = store_key(self.classifier, self.source)
        return Predictions.open(self.folder / PREDICTIONS, entry=entry, views=list(views.texts))

    def _collect_sample(self, engine: Engine, indices: IntArray, views: ViewSet) -> Predictions:
        """Return predictions for the images that `describe_harmful_views` would read, in memory."""
        step = -(-len(indices) // MAX_IMAGES_FOR_WARNINGS)
        return collect(
            self.classifier,
            self._select(indices[::step]),
            views,
            batch_size=self.batch_size,
            progress=self.progress,
            on_error=self.source.on_error,
            device=self.device,
            engine=engine,
        )
