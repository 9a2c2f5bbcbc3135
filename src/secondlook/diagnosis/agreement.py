"""The diagnosis that needs no labels: whether the answers to a view stay those to the image itself."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray
from secondlook.diagnosis.pool import Pool, pool_of
from secondlook.predictions import Predictions

MOST_CHANGED_OF_SUREST = 0.015
"""Of the half that the classifier is surest of, a view may change this share of the answers. See docs/search.md for
the views of real classifiers on both sides of it."""
MOST_LUCK = 0.01
"""A view is harmful where so many changes would come by chance less often than this, if that share were the truth:
a handful of images gives no false alarm."""
IMAGES_LOOKED_AT = 10_000
"""More would not make a warning surer; it keeps the memory bounded."""


@dataclass(frozen=True)
class Agreement:
    """How the answers to a view compare with those to the image itself."""

    share: float
    """Share of the images with the same answer."""
    share_of_surest: float
    """The same among the half that the classifier is surest of."""
    certainty_lost: float
    """Mean largest output on the image itself, less that on the view."""
    surest: int
    """How many images the surest half holds."""


def agreement_of(pool: Pool, place: int) -> Agreement:
    """Compare one view of the pool with the first, the identity."""
    surest = _surest_half(pool)
    return Agreement(
        share=float(pool.agrees[place].mean()),
        share_of_surest=float(pool.agrees[place, surest].mean()),
        certainty_lost=float(pool.largest[0].mean() - pool.largest[place].mean()),
        surest=int(surest.sum()),
    )


def _surest_half(pool: Pool) -> BoolArray:
    at_least_median: BoolArray = pool.largest[0] >= np.median(pool.largest[0])
    return at_least_median


def reason_of_disagreement(agreement: Agreement) -> str | None:
    """Return why a view is likely to hurt, as the end of a sentence, or None where it is not."""
    changed = round((1 - agreement.share_of_surest) * agreement.surest)
    if _chance_of_at_least(changed, agreement.surest, MOST_CHANGED_OF_SUREST) >= MOST_LUCK:
        return None
    return (
        f"it changes {100 * changed / agreement.surest:.1f} % of the answers that the classifier is surest of "
        f"(at most {100 * MOST_CHANGED_OF_SUREST:g} % is usual)."
    )


def _chance_of_at_least(changed: int, n: int, share: float) -> float:
    """Return the binomial chance of so many or more."""
    from scipy.special import betainc

    return 1.0 if changed == 0 else float(betainc(changed, n - changed + 1, share))


def harmful_view_warnings(preds: Predictions) -> list[str]:
    """Return a sentence for each view that is likely to make the confidence worse; needs no labels."""
    step = -(-preds.n_images // IMAGES_LOOKED_AT)
    pool = pool_of(preds if step == 1 else preds.select(images=np.arange(0, preds.n_images, step)))
    sentences = []
    for place, view in enumerate(pool.views.texts):
        reason = None if place == 0 else reason_of_disagreement(agreement_of(pool, place))
        if reason:
            sentences.append(f"view {view!r} is likely to make the confidence worse: {reason[:-1]}; leave it out.")
    return sentences
