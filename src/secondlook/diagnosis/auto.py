"""Views chosen for a classifier and its images: the most useful ones of a pool that do not harm the classifier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secondlook.arrays import is_whole_number
from secondlook.classifiers import load_classifier
from secondlook.diagnosis.diagnosis import assess_view, count_views, find_strain, list_first
from secondlook.diagnosis.gains import THE_IMAGE, Gain, compute_gain, format_gain, measure_performances
from secondlook.diagnosis.pool import Pool, read_pool
from secondlook.errors import DiagnosisError
from secondlook.files import Count, FrozenRecord
from secondlook.metrics import parse_metric
from secondlook.predictions import BatchSize, Engine, Predictions, collect
from secondlook.sources import OnError, open_labeled

MAX_IMAGES = 256
"""Images that the pool is collected for: enough to tell views that break a classifier from the others."""
DEFAULT_BUDGET = 12
MAX_STRAIN, MAX_STRAIN_AGAIN = 0.3, 0.2
"""Growth of the doubt above which a view is set aside although nothing shows that it is harmful: at first, and when the
chosen views are checked on more images, where a smaller growth is told from chance."""

_DIAGONAL = ("shift:3.125%,3.125%", "shift:-3.125%,-3.125%", "shift:3.125%,-3.125%", "shift:-3.125%,3.125%")
_STRAIGHT = ("shift:3.125%,0", "shift:-3.125%,0", "shift:0,3.125%", "shift:0,-3.125%")

_FIRST = (
    "hflip",
    *(text for shift in _DIAGONAL[:2] for text in (shift, f"hflip+{shift}")),
    *_STRAIGHT[:2],
    *(f"hflip+{shift}" for shift in _STRAIGHT[2:]),
    *("gamma:0.85", "gamma:1.15", "hflip+gamma:1.15"),
)
"""A mixture: strong shifts gain most for classifiers trained with shifts, mild ones and tones for others."""

AUTO_POOL: tuple[str, ...] = (
    *_FIRST,
    *(text for shift in _DIAGONAL[2:] for text in (shift, f"hflip+{shift}")),
    *_STRAIGHT[2:],
    *(f"hflip+{shift}" for shift in _STRAIGHT[:2]),
    *("rotate:3", "rotate:-3", "zoom:0.94", "zoom:1.06", "contrast:0.85", "contrast:1.15"),
)
"""The views besides the image itself to choose from, the most useful first, for photographs, digits and signs."""


class ViewChoice(FrozenRecord):
    """Views chosen for a classifier and its images; `print` shows what was chosen, and what was set aside and why."""

    views: tuple[str, ...]
    """The identity and the chosen views, the most useful first."""
    set_aside: dict[str, str]
    """Views that harm the classifier, or are likely to, and the reason."""
    images: Count
    """Number of images that the choice was made on."""
    pool: Count
    """Number of views to choose from, besides the image itself."""
    note: str | None = None
    """Why no views were chosen, if so."""

    def __str__(self) -> str:
        chosen = self.views[1:]
        what = f"{len(chosen)} of {self.pool} ({list_first(chosen)})" if chosen else f"none of {self.pool}"
        reason = f"; {self.note}" if self.note else ""
        return f"Views chosen on {self.images:,} images: {what}{reason}.\nHarmful views set aside: {self._set_aside()}."

    def _set_aside(self) -> str:
        if not self.set_aside:
            return "none"
        first, reason = next(iter(self.set_aside.items()))
        which = f"; {first!r}" if len(self.set_aside) > 1 else ""
        return f"{len(self.set_aside)} of {self.pool} ({list_first(list(self.set_aside))}){which}: {reason}"


def auto_views(
    classifier: Any,
    source: Any,
    *,
    budget: int = DEFAULT_BUDGET,
    labels: Any = None,
    top_k: int = 1,
    batch_size: BatchSize = "auto",
    store: str | Path | None = None,
    on_error: OnError | None = None,
    progress: bool = True,
    device: str = "auto",
    engine: Engine | None = None,
) -> ViewChoice:
    """Choose views for a classifier and its images: the most useful ones of `AUTO_POOL` that are not harmful.

    At most 256 of the images are classified, spread evenly over the source, the same ones each time.

    Parameters
    ----------
    classifier
        Anything that `load_classifier` accepts: a spec, a model, or a function from images to probabilities.
    source, labels
        Images as for `collect`, with labels if possible. Do not certify a guarantee on images that views were chosen
        on.
    budget
        Number of views to choose besides the image itself.
    top_k
        A prediction is correct if the label is among the k most probable classes.
    batch_size, on_error
        Images per call of the classifier; "fail" or "skip" for an image that cannot be read.
    store
        Folder to store the outputs in, so that an interrupted or repeated call does not compute them again.
    progress
        Whether to show a progress bar, if standard error is a terminal.
    device
        Where to classify: "auto", "cpu", "cuda" (all GPUs) or "cuda:N", see `collect`.
    engine
        Where chunks of the images are classified, see `collect`; by default in this process.
    """
    _check_budget(budget, len(AUTO_POOL))
    loaded = load_classifier(classifier)
    images = open_labeled(source, labels, loaded.class_names, on_error).spread(MAX_IMAGES)
    views = ("identity", *AUTO_POOL)
    preds = collect(
        loaded, images, views, store=store, batch_size=batch_size, progress=progress, device=device, engine=engine
    )
    return choose_views(preds, budget, top_k=top_k)


def choose_views(preds: Predictions, budget: int = DEFAULT_BUDGET, *, top_k: int = 1) -> ViewChoice:
    """Choose the first views of predictions that are not harmful.

    With labels, the image alone is chosen if the mean over these views is measurably worse in AUROC.

    Parameters
    ----------
    preds
        Predictions for a pool of views, the most useful first, of images that nothing is certified on.
    budget
        Maximum number of views to choose besides the image itself.
    top_k
        A prediction is correct if the label is among the k most probable classes.
    """
    return _choose(preds, budget, top_k, MAX_STRAIN)


def _choose(preds: Predictions, budget: int, top_k: int, max_strain: float) -> ViewChoice:
    _check_budget(budget)
    pool = read_pool(preds, top_k)
    reasons = {text: _find_reason(pool, position, max_strain) for position, text in enumerate(pool.views.texts)}
    set_aside = {text: reason for text, reason in reasons.items() if reason is not None}
    chosen = tuple(text for text in reasons if text not in set_aside)[: budget + 1]
    gain = _compare_with_image(pool, chosen)
    note = None
    if gain is not None and gain.verdict == "worse":
        note = f"the mean over {count_views(len(chosen) - 1)} is worse than {THE_IMAGE}, AUROC {format_gain(gain)}"
    return ViewChoice(
        views=chosen[:1] if note else chosen,
        set_aside=set_aside,
        images=preds.n_images,
        pool=preds.n_views - 1,
        note=note,
    )


def refine_choice(choice: ViewChoice, preds: Predictions, *, top_k: int = 1) -> ViewChoice:
    """Check chosen views again on more images, and set aside those that harm after all.

    `preds` are the predictions for the chosen views on all tuning images. Nothing new is classified.
    """
    chosen = preds.select(views=list(choice.views))
    again = _choose(chosen, max(1, len(choice.views) - 1), top_k, MAX_STRAIN_AGAIN)
    return ViewChoice(
        views=again.views,
        set_aside={**choice.set_aside, **again.set_aside},
        images=again.images,
        pool=choice.pool,
        note=choice.note or again.note,
    )


def _find_reason(pool: Pool, position: int, max_strain: float) -> str | None:
    """Return why a view is set aside, or None."""
    status, reason, _ = assess_view(pool, position)
    return reason if status == "harmful" else find_strain(pool, position, max_strain)


def _compare_with_image(pool: Pool, views: Sequence[str]) -> Gain | None:
    """Return the gain in AUROC of the mean over views; None without labels, errors or correct predictions."""
    if pool.view_correct is None or pool.correct.all() or not pool.correct.any():
        return None
    metric = parse_metric("auroc")
    confidences = [pool.mean_confidence(views), pool.mean_confidence(views[:1])]
    mean, image = measure_performances(metric, pool.correct, confidences, seed=0)
    return compute_gain(metric, mean, image, THE_IMAGE)


def _check_budget(budget: int, most: int | None = None) -> None:
    if not is_whole_number(budget) or budget < 1 or (most is not None and budget > most):
        expected = "at least 1" if most is None else f"1 to {most}"
        raise DiagnosisError(f"budget is {budget!r}; expected {expected} views besides the image itself.")
