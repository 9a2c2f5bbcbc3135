"""`SetupCheck`: the readings of a classifier that were tried, and whether one is clearly better than what was given."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from secondlook.tables import format_table

LOOKS_WRONG = "the setup looks wrong: "
"""The beginning of every warning of a check."""


class SetupWarning(UserWarning):
    """Preprocessing, class order or outputs of a classifier that are probably not what it was trained with."""


@dataclass(frozen=True)
class Reading:
    """One way to turn images into the input of a model and its outputs into classes, and what it gives.

    Attributes
    ----------
    name
        What is different, such as 'ImageNet normalization'; 'as given' for the setup itself.
    settings
        Arguments that differ from those given.
    images
        Number of images; readings that are no better on the first ones are not tried on all.
    accuracy, confidence
        Share of correct predictions, or None without labels, and the mean of the largest probabilities.
    p_value
        How probable such a gain in accuracy is if the reading is not better than the setup as given; None where not
        tested. A reading is clearly better only if this is below 0.01 divided by the number of comparisons.
    class_order
        The output of the classifier for each class of the data, where that differs.
    equally_good
        Names of other readings whose accuracy cannot be told apart from that of the better one.
    """

    name: str
    settings: dict[str, Any]
    images: int
    accuracy: float | None
    confidence: float
    p_value: float | None = None
    class_order: tuple[int, ...] | None = None
    equally_good: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetupCheck:
    """The result of `check_setup`; `print` shows a table and the verdict.

    Attributes
    ----------
    classifier, data
        What was checked.
    readings
        The setup as given, then the other readings in the order in which they were tried.
    better
        The reading that is clearly better, or None.
    warnings
        What is probably wrong, one sentence each; empty if the setup looks right.
    verdict
        One sentence.
    classified
        Number of images that were classified in all.
    members
        For an ensemble, the checks of its members; the other attributes then sum them up.
    """

    classifier: str
    data: str
    readings: tuple[Reading, ...]
    better: Reading | None
    warnings: tuple[str, ...]
    verdict: str
    classified: int
    members: tuple["SetupCheck", ...] = field(default=())

    @classmethod
    def join(cls, classifier: str, members: Sequence[Self]) -> Self:
        """Return the check of an ensemble from those of its members."""
        return cls(
            classifier=classifier,
            data=members[0].data,
            readings=tuple(reading for member in members for reading in member.readings),
            better=next((member.better for member in members if member.better is not None), None),
            warnings=tuple(dict.fromkeys(sentence for member in members for sentence in member.warnings)),
            verdict=" ".join(dict.fromkeys(member.verdict for member in members)),
            classified=sum(member.classified for member in members),
            members=tuple(members),
        )

    @property
    def looks_right(self) -> bool:
        """Whether nothing clearly better was found; without labels always."""
        return not self.warnings

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain values for JSON."""
        return {**asdict(self), "looks_right": self.looks_right}

    def __str__(self) -> str:
        if self.members:
            return "\n\n".join(f"{member.classifier}\n{member}" for member in self.members)
        rows = [["reading", "images", "accuracy", "confidence", "p"], *map(_format_row, self.readings)]
        return f"{format_table(rows, numbers=True)}\n{self.verdict}"


def _format_row(reading: Reading) -> list[str]:
    return [
        reading.name,
        str(reading.images),
        "" if reading.accuracy is None else format_share(reading.accuracy),
        format_share(reading.confidence),
        "" if reading.p_value is None else "<0.0001" if reading.p_value < 0.0001 else f"{reading.p_value:.4f}",
    ]


def format_share(share: float) -> str:
    """Return a share in per cent."""
    return f"{100 * share:.1f} %"
