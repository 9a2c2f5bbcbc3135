"""`Verification`: how far an exported file and the library decide alike, as text and JSON."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from secondlook.decisions import FileDecisions
from secondlook.tables import TextTable, format_html

DEFAULT_DIFFERENCE = 1e-3
"""Largest difference of a confidence by default: views of few images round a pixel to its neighbor."""

ROUNDING_DIFFERENCE = 5e-3
"""Differences up to this one can come from rounded pixels alone; in adaptive files single looks count most."""

MAX_LISTED = 20
"""Differing images that are printed: the ones that are hardest to explain."""

Cause = Literal["decision", "class", "looks"]
CLOSE_TO: dict[Cause, str] = {"decision": "threshold", "class": "tie of classes", "looks": "limit to look again"}


class ComparedDecision(NamedTuple):
    """One of two decisions about an image."""

    label: int | tuple[int, ...]
    confidence: float
    accept: bool
    looks: int

    @classmethod
    def select(cls, decided: FileDecisions, position: int) -> "ComparedDecision":
        """Return one of several decisions."""
        label = decided.labels[position]
        return cls(
            int(label) if label.ndim == 0 else tuple(int(one) for one in label),
            float(decided.confidence[position]),
            bool(decided.accept[position]),
            int(decided.looks[position]),
        )

    def __str__(self) -> str:
        label = self.label if isinstance(self.label, int) else ",".join(map(str, self.label))
        looks = f"{self.looks} look{'s' * (self.looks != 1)}"
        return f"{'accept' if self.accept else 'reject'} {label}, {self.confidence:.6f}, {looks}"


@dataclass(frozen=True)
class DifferingImage:
    """An image whose class, decision or number of looks differs between the library and the file."""

    id: str
    library: ComparedDecision
    file: ComparedDecision
    threshold_distance: float
    """Distance of the library's confidence from the threshold; infinite where the class accepts nothing."""
    cause: Cause
    """What differs first: the number of looks, on which the class depends, on which the decision depends."""
    distance: float
    """How far the library was from the other result: from the threshold, a tie of classes, or a limit of a look."""

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        distance = self.threshold_distance if math.isfinite(self.threshold_distance) else None
        return {
            "id": self.id,
            "library": self.library._asdict(),
            "file": self.file._asdict(),
            "threshold_distance": distance,
            "cause": self.cause,
            "distance": self.distance if math.isfinite(self.distance) else None,
        }


@dataclass(frozen=True)
class Verification:
    """Result of `verify_decider`."""

    path: Path
    """The exported file."""
    images: int
    """Number of images that were compared."""
    skipped: int
    """Number of images that could not be read."""
    tolerance: float
    differing_labels: int
    differing_decisions: int
    differing_looks: int
    largest_difference: float
    """Largest difference of the confidence, among images with the same class and number of looks."""
    mean_difference: float
    unexplained: int
    """Number of differing images that are further than `tolerance` from where the result changes."""
    differing: tuple[DifferingImage, ...]
    """The images that differ, those with the largest distance first; at most 1,000 of them."""
    largest_probability_difference: float = 0.0
    """Largest difference of the probability of any class, among images with the same number of looks."""
    interpolates: bool = False
    """Whether the policy resizes images, or has views that compute pixels in between."""

    @property
    def passed(self) -> bool:
        """Whether the file decides as the library does, but for rounding."""
        largest = max(self.largest_difference, self.largest_probability_difference)
        return largest <= self.tolerance and self.unexplained == 0

    @property
    def verdict(self) -> str:
        """Whether the file passed, in words."""
        if self.passed:
            return "passed: the file decides as the library does"
        if self.unexplained:
            fault = (
                f"{self.unexplained:,} images differ that are further than {self.tolerance:g} from where the result "
                "changes"
            )
        else:
            what = "confidence" if self.largest_difference > self.tolerance else "probability"
            fault = f"a {what} differs by more than {self.tolerance:g}"
        return f"failed: {fault}{self._explain_rounding()}"

    def _explain_rounding(self) -> str:
        """Return that rounded pixels may be the cause, where they can be."""
        distances = [image.distance for image in self.differing]
        largest = max(self.largest_difference, self.largest_probability_difference, *distances)
        if not self.interpolates or largest > ROUNDING_DIFFERENCE:
            return ""
        return (
            f"; the policy resizes images or computes pixels in between, whose rounding causes differences up to about "
            f"{ROUNDING_DIFFERENCE:g}, so compare with this tolerance"
        )

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        values = asdict(self)
        del values["differing"]
        images = [image.to_dict() for image in self.differing]
        return {**values, "path": str(self.path), "passed": self.passed, "differing": images}

    def __str__(self) -> str:
        return "\n".join([self._describe(), *(f"\n{table}" for table in self._list_tables())])

    def _repr_html_(self) -> str:
        return format_html([self._describe(), *self._list_tables()])

    def _describe(self) -> str:
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        return "\n".join(
            [
                f"{self.images:,} images compared{skipped}: {self.differing_decisions:,} decisions, "
                f"{self.differing_labels:,} classes and {self.differing_looks:,} numbers of looks differ",
                f"confidence: differs by at most {self.largest_difference:.3g}, by {self.mean_difference:.3g} on "
                f"average (tolerance {self.tolerance:g})",
                f"probabilities: differ by at most {self.largest_probability_difference:.3g}",
                self.verdict,
            ]
        )

    def _list_tables(self) -> list[TextTable]:
        if not self.differing:
            return []
        rows = [("image", "library", "file", "to threshold", "differs in")]
        for image in self.differing[:MAX_LISTED]:
            near = f"{image.cause}, {image.distance:.3g} from a {CLOSE_TO[image.cause]}"
            rows.append((image.id, str(image.library), str(image.file), f"{image.threshold_distance:.3g}", near))
        return [TextTable(rows)]
