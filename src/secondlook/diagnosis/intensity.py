"""Intensity curves: how a family of views, such as turns or shifts, acts as it grows stronger."""

import math
from collections import defaultdict
from dataclasses import dataclass

from secondlook.diagnosis.diagnosis import Diagnosis, ViewDiagnosis
from secondlook.views import Amount, BoundStep, View


@dataclass(frozen=True)
class IntensityCurve:
    """The diagnoses of the views that differ in one step's arguments only, by rising intensity."""

    family: str
    """The view with its arguments left out, such as 'hflip+rotate'."""
    intensities: tuple[float, ...]
    """The argument itself; for a shift the distance."""
    points: tuple[ViewDiagnosis, ...]


def intensity_curves(diagnosis: Diagnosis) -> dict[str, IntensityCurve]:
    """Return the curve of each family that has at least two views in the pool."""
    families: dict[str, list[tuple[float, ViewDiagnosis]]] = defaultdict(list)
    for row in diagnosis:
        view = View.parse(row.view)
        intensity = _intensity(view)
        if intensity is not None:
            families["+".join(map(_family, view.steps))].append((intensity, row))
    return {family: _curve(family, points) for family, points in families.items() if len(points) > 1}


def _curve(family: str, points: list[tuple[float, ViewDiagnosis]]) -> IntensityCurve:
    rising = sorted(points, key=lambda point: (point[0], point[1].view))
    return IntensityCurve(family, tuple(x for x, _ in rising), tuple(row for _, row in rising))


def _family(step: BoundStep) -> str:
    """Return the name of a step, with the unit of its amounts: five per cent and two pixels do not compare."""
    relative = any(isinstance(one, Amount) and one.percent for one in step.arguments)
    return f"{step.name}:%" if relative else step.name


def _intensity(view: View) -> float | None:
    """Return how strong the one step with arguments is; None where there are several such steps, or none."""
    with_arguments = [step for step in view.steps if step.arguments]
    return _strength(with_arguments[0]) if len(with_arguments) == 1 else None


def _strength(step: BoundStep) -> float | None:
    values = [one.value if isinstance(one, Amount) else one for one in step.arguments]
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values) or len(numbers) > 2:
        return None
    return numbers[0] if len(numbers) == 1 else math.hypot(*numbers)
