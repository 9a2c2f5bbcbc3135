"""`collect`: show a classifier every view of every image, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from secondlook.errors import PredictionsError
from secondlook.predictions.batching import BatchSize, choose_batch_size, chunk_rows
from secondlook.predictions.checks import check_class_names_agree
from secondlook.predictions.division import Chunking
from secondlook.predictions.flow import CollectJob, read_first_image, run_pipeline
from secondlook.predictions.images_file import keep_images
from secondlook.predictions.keeping import InMemory, OnDisk
from secondlook.predictions.manifest import (
    ENSEMBLE_FILE,
    EnsembleManifest,
    ensemble_key,
    entry_key,
    manifest_of,
    write_manifest,
)
from secondlook.predictions.opening import open_entry
from secondlook.predictions.predictions import Predictions
from secondlook.predictions.store import StoreEntry
from secondlook.progress import progress_bar
from secondlook.specs import short_name
from secondlook.views import ViewsLike, as_view_set

if TYPE_CHECKING:
    from secondlook.classifiers import Classifier
    from secondlook.sources import Source

PROGRESS_UNIT = "images x views"


def collect(
    classifier: Any,
    data: Any,
    views: ViewsLike,
    *,
    store: str | Path | None = None,
    labels: Any = None,
    batch_size: BatchSize = "auto",
    progress: bool = True,
    on_error: Literal["fail", "skip"] | None = None,
) -> Predictions:
    """Return what `classifier` answers to all `views` of all images of `data`.

    Parameters
    ----------
    classifier
        Whatever `load_classifier` takes: a text, a model, or a function from images to probabilities.
    data
        An array uint8 or float32 [N, H, W, C], the text of a source, or a source.
    views
        A set of views, a preset's name, or views as text.
    store
        A folder to keep the predictions in. What is in there already is not computed again, and a job that was killed
        goes on where it was. Without it they are kept in memory only.
    labels
        The right class of each image of an array, int [N]; other sources bring their own.
    batch_size
        Images per call of the classifier; halved whenever memory runs out.
    progress
        Whether to draw a progress bar, where standard error is a terminal.
    on_error
        What to do with an image that cannot be read: "fail" (unless the source says otherwise), or "skip" it and
        record it.
    """
    from secondlook.classifiers import load_classifier
    from secondlook.sources import open_source

    loaded = load_classifier(classifier)
    source = open_source(data, labels=labels, on_error=on_error)
    check_class_names_agree(loaded.members or (loaded,), source)
    collecting = _Collecting(source, as_view_set(views), batch_size, progress)
    if store is None:
        return collecting.in_memory(loaded)
    return collecting.on_disk(loaded, Path(store))


class _Collecting:
    """What stays the same for all members of an ensemble."""

    def __init__(self, source: Source, views: ViewsLike, batch_size: BatchSize, progress: bool) -> None:
        self._source = source
        self._views = as_view_set(views)
        self._batch_size = batch_size
        self._progress = progress

    def in_memory(self, classifier: Classifier) -> Predictions:
        """Collect into arrays."""
        if classifier.members:
            return self._ensemble([self.in_memory(member) for member in classifier.members])
        job, source = self._job(classifier), self._source
        keeper = InMemory(len(source), len(self._views))
        self._run(job, keeper)
        indices, answers = keeper.finished()
        labels = None if source.labels is None else source.labels[indices]
        ids = [source.ids[index] for index in indices]
        predictions = Predictions(
            **{classifier.output: answers}, views=self._views, labels=labels, ids=ids, class_names=source.class_names
        )
        predictions.skipped = tuple((image.id, image.reason) for image in source.skipped)
        return predictions

    def on_disk(self, classifier: Classifier, store: Path) -> Predictions:
        """Collect into the parts of a run, and read them from there."""
        if classifier.members:
            members = [self.on_disk(member, store) for member in classifier.members]
            self._keep_ensemble(classifier, store)
            return self._ensemble(members)
        job = self._job(classifier)
        run = StoreEntry.begin(self._folder(classifier, store), manifest_of(job))
        with run.being_collected():
            self._fill(run, job)
        if run.manifest.skipped and self._source.on_error == "fail":
            raise PredictionsError(run.skipped_sentence())
        return open_entry(run, self._views)

    def _fill(self, run: StoreEntry, job: CollectJob) -> None:
        keep_images(run.folder, self._source.ids, self._source.labels)
        run.remove_parts_about(image.index for image in run.manifest.skipped if self._can_be_read(image.index))
        run.remove_damaged_parts(self._views.texts)
        with OnDisk(run, self._views.texts).writing() as keeper:
            self._run(job, keeper)
        run.finish()

    def _can_be_read(self, index: int) -> bool:
        from secondlook.sources import UnreadableImageError

        try:
            self._source.read(index)
        except UnreadableImageError:
            return False
        return True

    def _run(self, job: CollectJob, keeper: InMemory | OnDisk) -> None:
        lacking = sum(
            len(job.division.indices_of(number))
            for number in job.division.numbers
            for place in range(len(job.views))
            if keeper.lacks(place, number)
        )
        with progress_bar(short_name(job.classifier.name), lacking, PROGRESS_UNIT, enabled=self._progress) as advance:
            run_pipeline(job, keeper, advance)

    def _job(self, classifier: Classifier) -> CollectJob:
        image = read_first_image(classifier, self._source)
        batch_size = choose_batch_size(self._batch_size, image)
        return CollectJob(
            classifier, self._source, self._views, batch_size, Chunking(len(self._source), chunk_rows(image))
        )

    def _folder(self, classifier: Classifier, store: Path) -> Path:
        if not classifier.digest:
            raise PredictionsError(
                f"classifier {classifier.name!r} has no name to keep its answers under; "
                "give it one that changes whenever the function does: load_classifier(..., name='v1'), or "
                "?name=v1 behind its text; or leave store= out."
            )
        return store / entry_key(classifier, self._source)

    def _keep_ensemble(self, ensemble: Classifier, store: Path) -> None:
        members = tuple(entry_key(member, self._source) for member in ensemble.members)
        folder = store / ensemble_key(members)
        folder.mkdir(exist_ok=True)
        write_manifest(folder / ENSEMBLE_FILE, EnsembleManifest(members=members))

    def _ensemble(self, members: list[Predictions]) -> Predictions:
        return Predictions(members=members, views=self._views)
