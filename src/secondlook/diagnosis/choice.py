"""Candidate views, and `choose_views`: the most useful views of a pool that do not harm a classifier."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import IntArray, is_whole_number
from secondlook.classifiers import Classifier, load_classifier
from secondlook.diagnosis.diagnosis import Pool, assess_view, count_views, find_strain, list_first, read_pool
from secondlook.errors import ANY, DiagnosisError, MetricError, Repair
from secondlook.estimators import tuning_positions
from secondlook.files import Count, FrozenRecord
from secondlook.metrics import Interval, Ranking, auroc, parse_metric, resample_metrics
from secondlook.predictions import DEFAULT_EXECUTION, Execution, Predictions, collect
from secondlook.registry import did_you_mean
from secondlook.sources import Source
from secondlook.tables import format_difference, format_difference_interval, format_table
from secondlook.views import AUTO, View, ViewSet, ViewsLike

MAX_IMAGES = 256
"""Number of images to collect the pool for: enough to detect views that break a classifier."""
MAX_STRAIN, MAX_STRAIN_AGAIN = 0.3, 0.2
"""Growth of the doubt above which a view is set aside even if it is not proven harmful: at first, and when the chosen
views are checked on more images, which detect a smaller growth."""
LEVEL = 0.95
RESAMPLES = 200
"""Confidence level and number of resamples of the interval of the difference to the image alone."""
LAST_LEVEL = 4
"""Strongest candidates: shifts by a quarter of the image, rotations by 8 degrees, zooms by one sixth."""


_DIAGONAL = ("shift:3.125%,3.125%", "shift:-3.125%,-3.125%", "shift:3.125%,-3.125%", "shift:-3.125%,3.125%")
_STRAIGHT = ("shift:3.125%,0", "shift:-3.125%,0", "shift:0,3.125%", "shift:0,-3.125%")

AUTO_POOL: tuple[str, ...] = (
    # A mixture first: classifiers trained with shifts benefit most from strong shifts, others from mild shifts and
    # tones.
    "hflip",
    *(text for shift in _DIAGONAL[:2] for text in (shift, f"hflip+{shift}")),
    *_STRAIGHT[:2],
    *(f"hflip+{shift}" for shift in _STRAIGHT[2:]),
    *("gamma:0.85", "gamma:1.15", "hflip+gamma:1.15"),
    *(text for shift in _DIAGONAL[2:] for text in (shift, f"hflip+{shift}")),
    *_STRAIGHT[2:],
    *(f"hflip+{shift}" for shift in _STRAIGHT[:2]),
    *("rotate:3", "rotate:-3", "zoom:0.94", "zoom:1.06", "contrast:0.85", "contrast:1.15"),
)
"""The pool of `choose_views` besides the image itself, for photographs, digits and signs."""


def candidate_views(kind: str = "natural", image_size: int = 32, n: int | None = 100) -> ViewSet:
    """Return candidate views for a search, ordered from mild to strong and starting with the identity.

    A smaller set is the beginning of a larger one.

    Parameters
    ----------
    kind
        'natural' for photographs, 'digits' for images that must not be flipped, 'harmful' for views that break most
        classifiers, or 'auto' for the pool of `choose_views`, most useful views first.
    image_size
        Side of the classifier's input in pixels. Shifts are whole pixels, proportional to it: 1 at 32, 7 at 224.
    n
        Number of views, including the identity; None for all.
    """
    if kind not in CANDIDATE_KINDS:
        known = f"{', '.join(CANDIDATE_KINDS)}.{did_you_mean(kind, CANDIDATE_KINDS)}"
        raise DiagnosisError(f"unknown kind of candidates {kind!r}; expected one of: {known}")
    if image_size < 1:
        fault = "is out of range; expected the side of the images in pixels, at least 1"
        raise DiagnosisError(fault, argument="image_size", value=image_size)
    texts = CANDIDATE_KINDS[kind](max(1, round(image_size / 32)))
    views = list(dict.fromkeys([View(), *map(View.parse, texts)]))
    if n is not None and not 2 <= n <= len(views):
        fault = f"is out of range; expected 2 to {len(views)} candidates (including the identity), or None for all"
        raise DiagnosisError(fault, argument="n", value=n)
    return ViewSet(views[:n])


def _natural_views(unit: int) -> list[str]:
    return ["hflip", *(text for mild in _unflipped_views(unit) for text in (mild, f"hflip+{mild}"))]


def _unflipped_views(unit: int) -> list[str]:
    """Return views of increasing strength; `unit` is the number of pixels of the smallest shift."""
    views: list[str] = []
    for level in range(1, LAST_LEVEL + 1):
        near, far = _shifts((2 * level - 1) * unit), _shifts(2 * level * unit)
        rotations = [f"rotate:{2 * level}", f"rotate:{-2 * level}"]
        zoom_in, zoom_out = f"zoom:{1 + 0.04 * level:g}", f"zoom:{1 - 0.04 * level:g}"
        darker, brighter = f"gamma:{1 + 0.2 * level:g}", f"gamma:{0.85**level:.2g}"
        more_contrast, less_contrast = f"contrast:{1 + 0.15 * level:g}", f"contrast:{0.85**level:.2g}"
        views += [*near, *far, *rotations, zoom_in, zoom_out, brighter, darker, less_contrast, more_contrast]
        views += [f"{rotations[0]}+{near[0]}", f"{rotations[1]}+{near[1]}", f"{zoom_in}+{brighter}"]
        views += [f"{zoom_in}+{rotations[1]}", f"{brighter}+{near[2]}", f"{less_contrast}+{near[3]}"]
    return views


def _harmful_views(unit: int) -> list[str]:
    rotations = ["rotate:90", "rotate:45", "rotate:-135"]
    shifts = [f"shift:{14 * unit},{-14 * unit}", f"shift:{-16 * unit},0"]
    return ["vflip", "hflip+vflip", "channels:bgr", "channels:gbr", "channels:brg", *rotations, *shifts]


def _shifts(distance: int) -> list[str]:
    """Return the shifts by a number of pixels to the right, left, down and up, then along both diagonals."""
    straight = [(distance, 0), (-distance, 0), (0, distance), (0, -distance)]
    diagonal = [(x, y) for x in (distance, -distance) for y in (distance, -distance)]
    return [f"shift:{x},{y}" for x, y in straight + diagonal]


CANDIDATE_KINDS: dict[str, Callable[[int], list[str]]] = {
    "natural": _natural_views,
    "digits": _unflipped_views,
    "harmful": _harmful_views,
    "auto": lambda _: list(AUTO_POOL),
}
"""Functions from the smallest shift in pixels to candidates from mild to strong, by kind."""


class ViewChoice(FrozenRecord):
    """Views chosen for a classifier and its images; `print` shows chosen views, and harmful views with the reason."""

    views: tuple[str, ...]
    """The identity and the chosen views, the most useful first."""
    set_aside: dict[str, str]
    """Views that harm the classifier, or probably do, with the reason."""
    images: Count
    """Number of images used for the choice."""
    pool: Count
    """Number of views to choose from, besides the image itself."""
    note: str | None = None
    """The reason if no views were chosen."""

    def refine(self, preds: Predictions, *, top_k: int = 1) -> "ViewChoice":
        """Check the chosen views again on more images, and set harmful ones aside.

        `preds` are the predictions for the chosen views on all tuning images. Nothing is classified again.
        """
        chosen = preds.select(views=list(self.views))
        again = _choose(chosen, max(1, len(self.views) - 1), top_k, MAX_STRAIN_AGAIN)
        set_aside = {**self.set_aside, **again.set_aside}
        return again.model_copy(update={"set_aside": set_aside, "pool": self.pool, "note": self.note or again.note})

    def write(self, path: str | Path) -> Path:
        """Write the chosen views to a .txt file, which any `views` argument accepts."""
        target = Path(path)
        if target.suffix != ".txt":
            raise DiagnosisError(f"cannot write {str(target)!r}; expected a file name that ends in .txt.")
        comments = [f"# {line}" for line in str(self).splitlines()]
        try:
            target.write_text("\n".join([*comments, *self.views, ""]), encoding="utf-8")
        except OSError as error:
            raise DiagnosisError(f"cannot write {str(target)!r}: {error.strerror}.") from None
        return target

    def describe_views(self) -> list[str]:
        """Describe the chosen views, for example 'mirrored', without the image itself."""
        return _describe_views(self.views[1:])

    def details(self) -> str:
        """Return a table of all views: text, description, and the reason for setting it aside."""
        rows = [["view", "in words", "set aside because"]]
        for texts in (self.views[1:], tuple(self.set_aside)):
            words = zip(texts, _describe_views(texts), strict=True)
            rows += [[text, meaning, self.set_aside.get(text, "")] for text, meaning in words]
        return format_table(rows)

    def __str__(self) -> str:
        chosen, harmful = self.describe_views(), "none"
        what = f"{len(chosen)} of {self.pool} ({list_first(chosen)})" if chosen else f"none of {self.pool}"
        note = f"; {self.note}" if self.note else ""
        if self.set_aside:
            words, reason = _describe_views(self.set_aside), next(iter(self.set_aside.values()))
            which = f"; {words[0]!r}" if len(words) > 1 else ""
            harmful = f"{len(words)} of {self.pool} ({list_first(words)}){which}: {reason}"
        return f"Views chosen on {self.images:,} images: {what}{note}.\nHarmful views set aside: {harmful}."


def _describe_views(texts: Iterable[str]) -> list[str]:
    return [view.describe() for view in ViewSet.with_names([str(View()), *texts])][1:]


def choose_views(
    classifier: Any,
    data: Any = None,
    *,
    budget: int = 12,
    labels: Any = None,
    top_k: int = 1,
    store: str | Path | None = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> ViewChoice:
    """Choose views for a classifier and images: the most useful views of a pool that are not harmful.

    The pool is `candidate_views("auto", n=None)`. At most 256 images are classified, spread evenly over the data and
    the same in every call. With labels, only the image itself is chosen if the mean over the views has a measurably
    worse AUROC.

    Parameters
    ----------
    classifier
        Anything that `load_classifier` accepts: a spec, a model, or a function from images to probabilities. Or
        predictions for your own pool, with the most useful views first; then `data` is not needed.
    data, labels
        Images as for `collect`, with labels if possible. Do not certify a guarantee on the same images.
    budget
        Maximum number of views to choose besides the image itself.
    top_k
        A prediction is correct if the label is among the k most probable classes.
    store
        Folder to store the outputs in, for an interrupted or repeated call.
    execution
        Where and how to classify, see `Execution`.
    """
    is_collected = isinstance(classifier, Predictions)
    if not is_whole_number(budget) or budget < 1 or (budget > len(AUTO_POOL) and not is_collected):
        expected = "at least 1" if is_collected else f"1 to {len(AUTO_POOL)}"
        fault = f"is out of range; expected a whole number, {expected}"
        raise DiagnosisError(fault, argument="budget", value=budget)
    if is_collected:
        return _choose(classifier, budget, top_k, MAX_STRAIN)
    if data is None:
        raise DiagnosisError("choosing views for a classifier needs images", repair=Repair("pass {data}", data=ANY))
    loaded = load_classifier(classifier)
    images = loaded.open_labeled(data, labels, execution.on_error).spread(MAX_IMAGES)
    preds = collect(loaded, images, ViewSet(("identity", *AUTO_POOL)), store=store, execution=execution)
    return _choose(preds, budget, top_k, MAX_STRAIN)


def _choose(preds: Predictions, budget: int, top_k: int, max_strain: float) -> ViewChoice:
    pool = read_pool(preds, top_k)
    set_aside = {}
    for position, text in enumerate(pool.views.texts):
        status, reason, _ = assess_view(pool, position)
        reason = reason if status == "harmful" else find_strain(pool, position, max_strain)
        if reason is not None:
            set_aside[text] = reason
    chosen = tuple(text for text in pool.views.texts if text not in set_aside)[: budget + 1]
    note = _describe_loss(pool, chosen)
    views = chosen[:1] if note else chosen
    return ViewChoice(views=views, set_aside=set_aside, images=preds.n_images, pool=preds.n_views - 1, note=note)


def _describe_loss(pool: Pool, views: tuple[str, ...]) -> str | None:
    """Describe by how much the mean over views is measurably worse in AUROC than the image alone, or return None."""
    if pool.view_correct is None or pool.correct.all() or not pool.correct.any():
        return None
    # A mean of probabilities may round to slightly more than 1.
    positions = [pool.views.texts.index(view) for view in views]
    mean, image = (np.clip(pool.class_mass[some].mean(axis=0), 0.0, 1.0) for some in (positions, positions[:1]))
    metric = parse_metric("auroc")

    def compute(_: str, ranking: Ranking) -> list[float]:
        try:
            return [metric.compute(ranking)]
        except MetricError:  # a resample without errors
            return [math.nan]

    entries = {"mean": (pool.correct, mean), "image": (pool.correct, image)}
    resampled = resample_metrics(entries, compute, RESAMPLES, 0)
    interval = Interval.from_resamples(resampled["mean"][:, 0] - resampled["image"][:, 0], LEVEL)
    if interval is None or interval.high >= 0:
        return None
    difference = format_difference(auroc(pool.correct, mean) - auroc(pool.correct, image))
    ends = format_difference_interval(interval.low, interval.high)
    return f"the mean over {count_views(len(views) - 1)} is worse than the image alone, AUROC {difference} {ends}"


def collect_views(
    classifier: Classifier,
    source: Source,
    views: ViewsLike,
    *,
    top_k: int = 1,
    store: Path | None = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> tuple[Predictions, IntArray, ViewChoice | None]:
    """Collect predictions for given views; "auto" chooses views first, on tuning images that are set apart.

    Also return the positions of the tuning images in the predictions, int64 [n], empty for fewer than four images; and
    the choice of views, if any. The pool is classified for a few hundred of the tuning images, and the chosen views are
    checked again on all of them.
    """
    # Set apart independently of content, so that the others remain independent draws; only distinct images are used.
    indices, choice = tuning_positions(len(source)), None
    copies = frozenset(source.ids[index] for index in source.find_duplicates())
    if isinstance(views, str) and views == AUTO:
        distinct = [index for index in indices.tolist() if source.ids[index] not in copies]
        # With fewer than four images, none is set apart, and nothing can be certified.
        sample = source.select(np.array(distinct)) if distinct else source
        choice = choose_views(classifier, sample, top_k=top_k, store=store, execution=execution)
        views = choice.views
    preds = collect(classifier, source, ViewSet(views), store=store, execution=execution)
    # Skipped images are not in the predictions.
    ids = frozenset(source.ids[index] for index in indices)
    tuning = np.array([place for place, id_ in enumerate(preds.ids) if id_ in ids], dtype=np.int64)
    if choice is not None:
        used = [place for place in tuning.tolist() if preds.ids[place] not in copies]
        choice = choice.refine(preds.select(images=used) if used else preds, top_k=top_k)
        preds = preds.select(views=list(choice.views))
    return preds, tuning, choice
