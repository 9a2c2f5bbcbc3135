"""The ledger: every calibration on the same images, and the probability that one of their guarantees fails."""

import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from secondlook.arrays import IntArray
from secondlook.errors import CalibrationWarning, DecisionError, Repair
from secondlook.files import (
    FrozenRecord,
    SealedRecord,
    compute_checksum,
    describe_invalid,
    exclusive_lock,
    read_regular_file,
    write_bytes_atomically,
)
from secondlook.predictions import PredictFrom, Predictions


class RecordedCalibration(FrozenRecord):
    """The terms and the images of a calibration.

    The methods, with their own options, share `delta`; `options` apply to all of them.
    """

    images: str
    """Digest of the images; for a stream, the checksum of the policy that scored it."""
    predictions: str
    """Key of the entry in the store, which identifies the classifier; empty for a stream."""
    selection: str
    """The selected images, from `Ledger.identify_selection`; for a stream, its first image."""
    views: tuple[str, ...]
    methods: tuple[str, ...] = Field(min_length=1)
    options: dict[str, str | int | float | bool | None]
    predict_from: PredictFrom
    top_k: int = Field(gt=0)
    risk: float | None = Field(gt=0, lt=1)
    """None if the guarantee bounds the risk of every threshold at once."""
    delta: float = Field(gt=0, lt=1)
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    """Tolerance of adaptive looking; None if every image has all looks."""
    max_looks: int | None = Field(default=None, gt=0)
    class_risks: tuple[Annotated[float, Field(gt=0, lt=1)], ...] | None = None
    """The risk of each predicted class; `risk` is the largest. None if there is one threshold for all."""
    class_groups: dict[str, tuple[int, ...]] | None = None
    """The classes of each group, in the order of `class_risks`; None if no classes share a threshold."""

    def equals(self, other: "RecordedCalibration") -> bool:
        """Whether both calibrations have equal terms; the order of the methods does not matter."""
        return set(self.methods) == set(other.methods) and self.model_copy(update={"methods": other.methods}) == other


class Ledger(SealedRecord):
    """Calibrations by the time they were first made, including those on other images."""

    OF_RUN: ClassVar[str] = "calibrations.json"
    OF_SCORES: ClassVar[str] = "_calibrations.json"
    """File name beside score files, where names that begin with '_' are not scores."""

    format: Literal["secondlook calibrations"] = "secondlook calibrations"
    version: Literal[1] = 1
    calibrations: tuple[RecordedCalibration, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a ledger; it is empty before the first calibration."""
        try:
            return cls.model_validate_json(read_regular_file(path))
        except FileNotFoundError:
            return cls()
        except ValidationError as error:
            raise DecisionError(
                f"the list of calibrations {str(path)!r} is damaged, {describe_invalid(error)}; restore it, or delete "
                "it and add the failure probabilities of earlier calibrations yourself."
            ) from None

    @classmethod
    def record(cls, path: Path, repair: Repair | str, *, planned: float = 0.0, **terms: Any) -> float | None:
        """Add a calibration with these terms to the ledger at `path`, unless it is there already.

        Return the joint failure probability of all calibrations on the same images, with a warning that ends in the
        repair; None for a single calibration, or up to the `planned` probability.
        """
        try:
            new = RecordedCalibration(**terms)
        except ValidationError as error:
            raise DecisionError(f"the ledger cannot store options of the method, {describe_invalid(error)}.") from None
        try:
            with exclusive_lock(path.with_suffix(".lock")):
                ledger = cls.read(path)
                if not any(one.equals(new) for one in ledger.calibrations):
                    ledger = cls(calibrations=(*ledger.calibrations, new))
                    write_bytes_atomically(path, ledger.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            fault = f"the calibration cannot be recorded in {str(path)!r}: {error.strerror}"
            raise DecisionError(fault, repair="make it writable") from None
        same = ledger.on_images(new.images)
        if len(same.calibrations) == 1 or same.joint_delta <= planned * (1 + 1e-9):
            return None
        warnings.warn(CalibrationWarning(same.describe(), repair=repair), stacklevel=4)
        return same.joint_delta

    @staticmethod
    def identify_selection(
        preds: Predictions, tuning: IntArray | None, duplicates: Iterable[str], *others: object
    ) -> str:
        """Return a checksum of the images of a calibration, the images set apart and the copies. int64 [n]"""
        apart = None if tuning is None else tuning.tolist()
        return compute_checksum({"selection": [preds.ids, apart, sorted(duplicates), *others]})

    def on_images(self, digest: str) -> "Ledger":
        """Return the calibrations on the images with this digest."""
        return Ledger(calibrations=tuple(one for one in self.calibrations if one.images == digest))

    @property
    def joint_delta(self) -> float:
        """A bound on the probability that at least one of the guarantees fails: the sum of their deltas."""
        return min(1.0, math.fsum(one.delta for one in self.calibrations))

    def describe(self) -> str:
        """Describe the probability that one of the guarantees fails."""
        probability = f"{100 * self.joint_delta:.4g} %, the sum of their deltas"
        reason = f"{len(self.calibrations)} different calibrations used these images"
        return f"{reason}, so the probability that one of their guarantees fails is up to {probability}"
