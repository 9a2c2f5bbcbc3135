"""`collect_views`: predictions for given views, or for views that are chosen on images set apart."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import IntArray
from secondlook.classifiers import Classifier
from secondlook.diagnosis.auto import ViewChoice, auto_views, refine_choice
from secondlook.estimators import tuning_positions
from secondlook.predictions import BatchSize, Engine, Predictions, collect
from secondlook.sources import Source, Subset
from secondlook.views import AUTO, ViewsLike, as_view_set


@dataclass(frozen=True, eq=False)
class CollectedViews:
    """Predictions for all images of a source, and which of the images are set apart for tuning."""

    preds: Predictions
    tuning: IntArray
    """Positions of the tuning images in the predictions; empty if there are fewer than four images. int64 [n]"""
    choice: ViewChoice | None
    """How the views were chosen on the tuning images; None if they were given."""


def collect_views(
    classifier: Classifier,
    source: Source,
    views: ViewsLike,
    *,
    top_k: int = 1,
    store: Path | None = None,
    batch_size: BatchSize = "auto",
    progress: bool = True,
    device: str = "auto",
    engine: Engine | None = None,
) -> CollectedViews:
    """Collect predictions for given views; "auto" chooses views first.

    Views are chosen in two steps: the pool is classified for a few hundred of the tuning images, and the views that
    pass are checked again on all tuning images.
    """
    indices, choice = choose_tuning_images(source), None
    execution: dict[str, Any] = {
        "store": store,
        "batch_size": batch_size,
        "progress": progress,
        "device": device,
        "engine": engine,
    }
    if isinstance(views, str) and views == AUTO:
        # Fewer than four images are too few to set one apart, and to certify anything.
        sample = Subset(source, indices, source.spec, source.on_error) if len(indices) else source
        choice = auto_views(classifier, sample, top_k=top_k, **execution)
        views = choice.views
    preds = collect(classifier, source, as_view_set(views), **execution)
    # Images that could not be read are not in the predictions.
    ids = frozenset(source.ids[index] for index in indices)
    tuning = np.array([place for place, id_ in enumerate(preds.ids) if id_ in ids], dtype=np.int64)
    if choice is not None:
        choice = refine_choice(choice, preds.select(images=tuning) if len(tuning) else preds, top_k=top_k)
        preds = preds.select(views=list(choice.views))
    return CollectedViews(preds, tuning, choice)


def choose_tuning_images(source: Source) -> IntArray:
    """Return the positions of the images of a source to set apart, ascending; never a copy of another. -> int64 [n]"""
    distinct = np.delete(np.arange(len(source)), source.find_duplicates())
    return distinct[tuning_positions(len(distinct))]
