"""`diagnose`: what each view of a pool does to the classifier, alone and next to the image itself."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from secondlook.diagnosis.agreement import Agreement, agreement_of
from secondlook.diagnosis.pool import Pool, pool_of
from secondlook.diagnosis.sanity import Sanity, sanity_of
from secondlook.diagnosis.text_table import aligned
from secondlook.errors import DiagnosisError
from secondlook.metrics import auroc
from secondlook.predictions import Predictions
from secondlook.views import View, ViewSet


@dataclass(frozen=True)
class ViewDiagnosis:
    """One view of the pool; what needs labels is None without them."""

    view: str
    agreement: Agreement
    accuracy: float | None
    """Share of right answers to the view alone."""
    auroc_alone: float | None
    """Of the view's own largest output, for the errors made on the image itself (the paper's Table 1)."""
    auroc_beside: float | None
    """Of the mean over the image itself and the view."""
    sanity: Sanity
    """Why the view is set aside, or what speaks against it."""


@dataclass(frozen=True)
class Diagnosis:
    """Every view of a pool, the identity first. `print` shows a table, the insane views with their reasons."""

    rows: tuple[ViewDiagnosis, ...]

    @property
    def sane(self) -> ViewSet:
        """The views that do not break the classifier, the identity among them."""
        return ViewSet([row.view for row in self.rows if row.sanity.reason is None])

    @property
    def sound(self) -> ViewSet:
        """The sane views that do not measurably weaken the classifier either; the search chooses from these."""
        return ViewSet([row.view for row in self.rows if row.sanity.is_sound])

    @property
    def insane(self) -> dict[str, str]:
        """The views that are set aside, each with the reason."""
        return {row.view: row.sanity.reason for row in self.rows if row.sanity.reason is not None}

    @property
    def weak(self) -> dict[str, str]:
        """The sane views that measurably weaken the right class, each with the numbers; they are chosen last."""
        return {row.view: row.sanity.weakness for row in self.rows if row.sanity.weakness is not None}

    def __iter__(self) -> Iterator[ViewDiagnosis]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, view: View | str) -> ViewDiagnosis:
        """Return the diagnosis of one view."""
        text = str(View.parse(view) if isinstance(view, str) else view)
        for row in self.rows:
            if row.view == text:
                return row
        raise DiagnosisError(f"view {text!r} was not diagnosed; there are: {', '.join(row.view for row in self.rows)}.")

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON can hold it."""
        return {"rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        titles = ["view", "agrees", "of the surest", "certainty lost"]
        has_labels = self.rows[0].accuracy is not None
        titles += ["accuracy", "AUROC alone", "beside x"] if has_labels else []
        titles.append("")
        table = aligned([titles, *(_cells(row) for row in self.rows)])
        return "\n".join([table, *self.set_aside_lines()])

    def set_aside_lines(self, most: int | None = None) -> list[str]:
        """Return a line for each view that is set aside, and one that counts them where there are more than `most`."""
        lines = [f"- {view} is set aside: {reason}" for view, reason in self.insane.items()]
        if most is None or len(lines) <= most:
            return lines
        return [*lines[:most], f"- and {len(lines) - most} more are set aside; the diagnosis lists them."]


def diagnose_views(preds: Predictions, *, top_k: int = 1) -> Diagnosis:
    """Return what each view does to the classifier. The first part needs no labels; with them there is more.

    A view is set aside where it changes answers that the classifier was sure of, or where the accuracy collapses; it
    is called weak where the output of the right class falls by more than chance explains.
    """
    return diagnosis_of(pool_of(preds, top_k))


def diagnosis_of(pool: Pool) -> Diagnosis:
    """Return the diagnosis of a pool that was read already."""
    return Diagnosis(tuple(_view_diagnosis(pool, place) for place in range(len(pool.views))))


def _view_diagnosis(pool: Pool, place: int) -> ViewDiagnosis:
    accuracy = alone = beside = None
    if pool.right is not None:
        accuracy = float(pool.right[place].mean())
        if pool.correct.any() and not pool.correct.all():
            alone = auroc(pool.correct, pool.largest[place])
            beside = auroc(pool.correct, pool.mean_confidence(np.array([0, place])))
    agreement, sanity = agreement_of(pool, place), sanity_of(pool, place)
    return ViewDiagnosis(str(pool.views[place]), agreement, accuracy, alone, beside, sanity)


def _cells(row: ViewDiagnosis) -> list[str]:
    agreement = row.agreement
    numbers = [agreement.share, agreement.share_of_surest]
    cells = [f"{100 * number:.1f} %" for number in numbers] + [f"{agreement.certainty_lost:+.3f}"]
    if row.accuracy is not None:
        ranked = [row.auroc_alone, row.auroc_beside]
        cells += [f"{100 * row.accuracy:.1f} %", *("-" if value is None else f"{100 * value:.2f}" for value in ranked)]
    sanity = row.sanity
    return [row.view, *cells, "set aside" if sanity.reason else "weak" if sanity.weakness else ""]
