"""The ledger of a run: every calibration on its images, and the probability that one of their guarantees fails."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from secondlook.errors import DecisionError, SecondLookWarning
from secondlook.files import FrozenRecord, SealedRecord, describe_invalid, exclusive_lock, write_bytes_atomically
from secondlook.policies import DEFAULT_DELTA
from secondlook.predictions import PredictFrom

LEDGER = "calibrations.json"


class CalibrationWarning(SecondLookWarning):
    """A guarantee that is weaker than it seems, since other calibrations used the same images."""


class RecordedCalibration(FrozenRecord):
    """What was certified, on which images.

    `images` is the digest of the images; `predictions`, the key of the entry in the store, identifies the classifier.
    The methods, with their own options, share `delta`; `options` are those of all of them.
    """

    images: str
    predictions: str
    views: tuple[str, ...]
    methods: tuple[str, ...] = Field(min_length=1)
    options: dict[str, str | int | float | bool | None]
    predict_from: PredictFrom
    top_k: int = Field(gt=0)
    risk: float = Field(gt=0, lt=1)
    delta: float = Field(gt=0, lt=1)
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    """Of adaptive looking; None if every image has all looks."""
    max_looks: int | None = Field(default=None, gt=0)
    class_risks: tuple[Annotated[float, Field(gt=0, lt=1)], ...] | None = None
    """The risk of each predicted class, of which `risk` is the largest; None if there is one threshold for all."""

    def equals(self, other: "RecordedCalibration") -> bool:
        """Whether both certify the same; the order of the methods does not matter."""
        return set(self.methods) == set(other.methods) and self.model_copy(update={"methods": other.methods}) == other


class Ledger(SealedRecord):
    """The calibrations of a run in the order in which they were first made, also those on other images."""

    format: Literal["secondlook calibrations"] = "secondlook calibrations"
    version: Literal[1] = 1
    calibrations: tuple[RecordedCalibration, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        """Read the ledger of a run; it is empty before the first calibration."""
        path = folder / LEDGER
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except ValidationError as error:
            raise DecisionError(
                f"the list of calibrations {str(path)!r} is damaged, {describe_invalid(error)}; restore it, or delete "
                "it and add the failure probabilities of earlier calibrations yourself."
            ) from None

    def on_images(self, digest: str) -> tuple[RecordedCalibration, ...]:
        """Return the calibrations on the images with this digest."""
        return tuple(one for one in self.calibrations if one.images == digest)


def record_calibration(folder: Path, new: RecordedCalibration) -> tuple[RecordedCalibration, ...]:
    """Add a calibration to the ledger of a run, unless it has it already, and return all on the same images."""
    try:
        with exclusive_lock(folder / "calibrations.lock"):
            ledger = Ledger.read(folder)
            if not any(one.equals(new) for one in ledger.calibrations):
                ledger = Ledger(calibrations=(*ledger.calibrations, new))
                write_bytes_atomically(folder / LEDGER, ledger.model_dump_json(indent=2).encode() + b"\n")
    except OSError as error:
        fault = f"the calibration cannot be recorded in {str(folder / LEDGER)!r}: {error.strerror}"
        raise DecisionError(fault, repair="make it writable") from None
    return ledger.on_images(new.images)


def joint_failure_probability(calibrations: Sequence[RecordedCalibration]) -> float:
    """Return a bound on the probability that at least one of the guarantees fails: the sum of their deltas."""
    return min(1.0, math.fsum(one.delta for one in calibrations))


def describe_joint_failure(calibrations: Sequence[RecordedCalibration]) -> str:
    """Return how probable it is that one of several guarantees fails."""
    probability = f"{100 * joint_failure_probability(calibrations):.4g} %, the sum of their deltas"
    reason = f"{len(calibrations)} different calibrations used these images"
    return f"{reason}, so the probability that one of their guarantees fails is up to {probability}"


def describe_terms(calibration: RecordedCalibration | None, delta: float | None) -> str:
    """Return where the risk and the delta of a report come from: a calibration, a given delta, or the default."""
    if calibration is not None:
        methods = " and ".join(calibration.methods)
        methods += ", adaptive" if calibration.tolerance else ""
        methods += ", with a threshold for each class" if calibration.class_risks else ""
        terms = f"risk {calibration.risk:g} and delta {calibration.delta:g}"
        return f"{terms} of the latest calibration of the run, for {methods}"
    if delta is not None:
        return f"delta {delta:g} as given; the risk follows from the error rate"
    return f"delta {DEFAULT_DELTA:g} by default: the run has no calibration; the risk follows from the error rate"


def note_calibration(calibration: RecordedCalibration, others: Sequence[RecordedCalibration]) -> list[str]:
    """Return notes for the reader of a report with this calibration; `others` are all on the same images."""
    notes = [f"{describe_joint_failure(others)}."] if len(others) > 1 else []
    if calibration.tolerance:
        notes.append(
            "The latest calibration looks adaptively: its policy has its threshold and counts. The operating points of "
            "this page are with all looks, at the same risk and delta."
        )
    if calibration.class_risks:
        notes.append(
            "The latest calibration has a threshold for each predicted class: they are in its policy. The operating "
            "points of this page have one for all classes, at the largest risk of any class and the same delta."
        )
    return notes
