"""Label on demand: the review page shows the images of a `LabelingPlan`; the server stops when it is finished."""

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from secondlook import Classifier, LabelingPlan, Predictions, Source
from secondlook.extension import Plan, ServingError, encode_png, resolve_classifier
from secondlook.serving import server
from secondlook.serving.access import check_binding
from secondlook.serving.label_files import NewLabel
from secondlook.serving.middleware import configure_logging
from secondlook.serving.options import ServiceOptions
from secondlook.serving.request_images import find_media_type, is_id
from secondlook.serving.responses import LabelingGoal, RequestError
from secondlook.serving.service import Service, start_service
from secondlook.serving.store import NewDecision, StoredImage

AHEAD = 32
"""Number of images in the review queue at a time, not counting skipped ones."""
CLOSING_SECONDS = 6.0
"""Seconds before the server stops, during which the last label can be undone; longer than on the page."""


@dataclass(frozen=True, eq=False)
class LabelingTask:
    """A plan, its images, and where to save the policy.

    Attributes
    ----------
    plan, preds
        The plan, and its predictions.
    source, classifier
        The images, and the classifier, which provides the class names.
    save
        Saves the policy of the plan; called when the certified images change.
    where
        A sentence about the location of the policy.
    """

    plan: LabelingPlan
    preds: Predictions
    source: Source
    classifier: Classifier
    save: Callable[[], None]
    where: str


class LabelingQueue:
    """Keeps the review queue and the policy in sync with the labels, the only state in the database."""

    def __init__(self, task: LabelingTask, service: Service) -> None:
        self._task, self._service, self._lock = task, service, Lock()
        self.class_names = task.preds.class_names or tuple(map(str, range(task.preds.n_classes)))
        self._ranks = {id_: rank for rank, id_ in enumerate(task.plan.ids)}
        self._positions = {id_: position for position, id_ in enumerate(task.preds.ids)}
        self._indices = {id_: index for index, id_ in enumerate(task.source.ids)}
        self._goal: LabelingGoal | None = None
        self._accepted: int | None = None
        self._skipped = 0
        self._finished_at: float | None = None
        for id_ in task.plan.ids:
            if not is_id(id_):
                raise ServingError(f"the id {id_[:50]!r} is too long or not printable; rename the image.")

    @property
    def is_over(self) -> bool:
        """Whether labeling is finished and the time for undoing the last label is over."""
        return self._finished_at is not None and time.monotonic() > self._finished_at + CLOSING_SECONDS

    def add(self, labels: Mapping[str, int], reviewer: str) -> None:
        """Record labels from a file, except for images outside the plan."""
        known = {id_: label for id_, label in labels.items() if id_ in self._ranks}
        self._store(list(known))
        new = [NewLabel("the labels", id_, label) for id_, label in known.items()]
        self._service.reviews.add_labels(new, reviewer)

    def update(self) -> LabelingGoal:
        """Apply new and undone labels, and return the progress."""
        plan, service = self._task.plan, self._service
        with self._lock:
            found = service.reviews.labels([one.number for one in service.decisions.list_deployments()])
            # Any `Answer`, including `cannot tell`, counts as an error: the conservative choice.
            labels = {id_: None if one < 0 else one for id_, one in found.items() if id_ in self._ranks}
            skipped = service.reviews.count_skipped()
            if self._goal is None or labels != plan.labels or skipped > self._skipped:
                plan.labels.clear()
                plan.add(labels)
                self._skipped = skipped
                self._goal = self._advance()
            return self._goal

    def _advance(self) -> LabelingGoal:
        """Offer the next images to label, and save the policy if it changed."""
        plan, progress = self._task.plan, self._task.plan.progress
        following = plan.next_ids(AHEAD + self._skipped)
        self._store(following)
        self._service.reviews.offer(following)
        if progress.accepted != self._accepted:
            self._task.save()
            self._accepted = progress.accepted
        text = f"{progress.certified_text[0].upper()}{progress.certified_text[1:]}."
        if progress.finished:
            self._finished_at = self._finished_at or time.monotonic()
            text = f"{text} {self._task.where if progress.accepted else 'No policy is saved.'} You can close this page."
        else:
            self._finished_at = None
            needed = f"{progress.next_step:,} labels" if progress.next_step != 1 else "one label"
            text = f"{text} The next step takes {needed}."
        return LabelingGoal(text=text, next_step=progress.next_step, finished=progress.finished)

    def _store(self, ids: Sequence[str]) -> None:
        """Add missing images to the database, with their rank in the plan as their place in the queue."""
        known = self._service.decisions.find(ids)
        new = [id_ for id_ in ids if id_ not in known]
        if not new:
            return
        live = self._service.live
        chosen = self._task.preds.select(images=np.array([self._positions[id_] for id_ in new]))
        stored = []
        for decision in live.options.detail(chosen, audit_seed=live.audit_seed):
            image = self._read_image(self._indices[decision.id])
            digest = hashlib.sha256(image.content).hexdigest()
            stored.append(NewDecision(decision, digest, None, image, float(self._ranks[decision.id])))
        self._service.decisions.add(stored, live.deployment.number)

    def _read_image(self, index: int) -> StoredImage:
        """Return the file of an image; without a file, or in an uncommon format, it is encoded as PNG."""
        path = self._task.source.find_path(index)
        if path is not None:
            try:
                content = path.read_bytes()
                return StoredImage(find_media_type(content, str(path)), content)
            except RequestError:
                pass
        return StoredImage("image/png", encode_png(self._task.source.read(index)))


def serve_labeling(
    task: LabelingTask, options: ServiceOptions, labels: Mapping[str, int], ready: Callable[[str], None]
) -> None:
    """Serve the review page until labeling is finished or a signal arrives; the plan then has all labels.

    Parameters
    ----------
    task
        The plan, its images, and where to save the policy.
    options
        The data folder, which stores all labels, and the address.
    labels
        Existing labels, by id.
    ready
        Called with the address once the page is served; not called if no label is needed.
    """
    check_binding(options, options.open_tokens())
    # The service needs a policy; this placeholder accepts nothing. JSON has no infinity.
    undecided = task.plan.settings.model_copy(update={"threshold": sys.float_info.max})
    resolved = resolve_classifier(undecided, task.classifier, allow_mismatch=True)
    opened = start_service(Plan(undecided, resolved.split_batches()), options)
    with configure_logging(quiet=True), opened as service:
        service.labeling = labeling = LabelingQueue(task, service)
        labeling.add(labels, "file")
        if not labeling.update().finished:
            server.run_server(service, ready=ready, certificate=None, key=None)
            labeling.update()
