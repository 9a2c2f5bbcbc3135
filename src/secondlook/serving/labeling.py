"""Label on demand: the review page asks for the labels that a `LabelingPlan` needs, and closes when it is finished."""

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
"""Number of images that wait for a label at a time, beside those that were skipped."""
CLOSING_SECONDS = 6.0
"""How long the last label can be undone; the page offers it for less."""


@dataclass(frozen=True, eq=False)
class LabelingTask:
    """A plan, what its images are, and what happens with the policy.

    Attributes
    ----------
    plan, preds
        The plan, and the predictions that it was made from.
    source, classifier
        The images of the predictions, and the classifier, which class names come from.
    save
        Called when other images are certified than before: saves the policy of the plan.
    where
        Where the policy is, in words for people.
    """

    plan: LabelingPlan
    preds: Predictions
    source: Source
    classifier: Classifier
    save: Callable[[], None]
    where: str


class LabelingQueue:
    """Keeps the review queue and the policy in step with the labels, which are all that the database remembers."""

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
        """Whether labeling is finished for long enough that nobody takes the last label back."""
        return self._finished_at is not None and time.monotonic() > self._finished_at + CLOSING_SECONDS

    def add(self, labels: Mapping[str, int], reviewer: str) -> None:
        """Record labels from a file; those of images that the plan does not ask for are left out."""
        known = {id_: label for id_, label in labels.items() if id_ in self._ranks}
        self._store(list(known))
        new = [NewLabel("the labels", id_, label) for id_, label in known.items()]
        self._service.reviews.add_labels(new, reviewer)

    def update(self) -> LabelingGoal:
        """Take over labels that were given or taken back, and return what they certify."""
        plan, service = self._task.plan, self._service
        with self._lock:
            found = service.reviews.labels([one.number for one in service.decisions.list_deployments()])
            # Other answers than classes count as wrong, also where nobody can tell: that is the safe side.
            labels = {id_: None if one < 0 else one for id_, one in found.items() if id_ in self._ranks}
            skipped = service.reviews.count_skipped()
            if self._goal is None or labels != plan.labels or skipped > self._skipped:
                plan.labels.clear()
                plan.add(labels)
                self._skipped = skipped
                self._goal = self._advance()
            return self._goal

    def _advance(self) -> LabelingGoal:
        """Offer the images that are to be labeled next, and save the policy if it changed."""
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
        """Put images into the database that are not there; they are shown in the order of the plan."""
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
        """Return the file of an image; one that is in no file, or in a format that few programs know, becomes a PNG."""
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
    """Serve the review page until labeling is finished or a signal comes; the plan has all labels then.

    Parameters
    ----------
    task
        The plan, its images, and what happens with the policy.
    options
        The data folder, which keeps all labels, and the address.
    labels
        Labels from elsewhere, by id.
    ready
        Called with the address once the page is served; not at all if no label is needed.
    """
    check_binding(options, options.open_tokens())
    # The service decides by a policy; there is none yet, so this one accepts nothing. JSON has no infinity.
    undecided = task.plan.settings.model_copy(update={"threshold": sys.float_info.max})
    resolved = resolve_classifier(undecided, task.classifier, allow_mismatch=True)
    opened = start_service(Plan(undecided, resolved.split_batches()), options)
    with configure_logging(quiet=True), opened as service:
        service.labeling = labeling = LabelingQueue(task, service)
        labeling.add(labels, "file")
        if not labeling.update().finished:
            server.run_server(service, ready=ready, certificate=None, key=None)
            labeling.update()
