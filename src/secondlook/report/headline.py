"""The result in one sentence, true to the numbers, also where the second look does not help."""

from dataclasses import dataclass
from typing import Literal

from secondlook.evaluation import Estimate, Evaluation
from secondlook.metrics import Interval
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import Study

MOST_DECIMALS = 4


@dataclass(frozen=True)
class Headline:
    """The sentence, and what it says about the second look."""

    sentence: str
    verdict: Literal["better", "worse", "unclear", "none"]


def headline(study: Study, evaluation: Evaluation, risk: float) -> Headline:
    """Say what the second look does for this classifier on these images.

    `evaluation` holds 'auroc' for the baseline and the second look.
    """
    if not study.has_right_and_wrong:
        return Headline(_nothing_to_detect(study), "none")
    if study.second_look is None:
        return Headline(_one_look_only(study, evaluation, risk), "none")
    auroc = evaluation[study.second_look, "auroc"]
    before = evaluation[study.baseline, "auroc"]
    pair = _pair(auroc.value or 0.0, before.value or 0.0, 1)
    compared = f"it detects errors with AUROC {pair}"
    end = f"{_accepting(study, study.second_look, risk, auroc)}."
    match auroc.verdict:
        case "better":
            return Headline(f"A second look detects errors with AUROC {pair}; {end}", "better")
        case "worse":
            return Headline(f"A second look does not help here: {compared}; {end}", "worse")
        case "unclear":
            uncertain = _difference(auroc, evaluation.level)
            return Headline(f"A second look makes no clear difference here: {compared} ({uncertain}); {end}", "unclear")
        case None:
            few = f"with {_counted(min(study.n_errors, study.n_images - study.n_errors), study)} that may be chance"
            return Headline(f"A second look cannot be judged on so few images: {compared}, {few}; {end}", "unclear")


def coverage_metric(risk: float) -> str:
    """Return the name of the metric that the sentence reads at `risk`."""
    return f"coverage_at:{risk:.12g}"


def percent(share: float, decimals: int = 2) -> str:
    """Write a share as per cent, with as many decimals at most as it needs."""
    text = f"{100 * share:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def _nothing_to_detect(study: Study) -> str:
    if study.n_errors == 0:
        return f"The classifier is right about all {_images(study)}: there is no error that a second look could detect."
    return f"The classifier is wrong about all {_images(study)}: there is no right answer to tell its errors from."


def _one_look_only(study: Study, evaluation: Evaluation, risk: float) -> str:
    auroc = evaluation[study.baseline, "auroc"].value or 0.0
    coverage = _coverage(study, study.baseline, risk)
    return (
        f"Without a second look, {study.baseline} detects errors with AUROC {100 * auroc:.1f}; "
        f"at {percent(risk, 4)} risk it accepts {percent(coverage, 1)} of the images."
    )


def _coverage(study: Study, method: str, risk: float) -> float:
    """Return the share that a threshold can accept at the risk: equal confidences are accepted together or not."""
    return point_at_risk(study.rankings[method], risk).accepted / study.n_images


def _accepting(study: Study, second_look: str, risk: float, auroc: Estimate) -> str:
    """Say what is accepted at the risk; 'but' where this and the AUROC point different ways."""
    after, before = _coverage(study, second_look, risk), _coverage(study, study.baseline, risk)
    if after == before:
        return f"at {percent(risk, 4)} risk both accept {percent(after, 1)} of the images"
    opposed = (auroc.difference or 0.0) * (after - before) < 0
    accepting = f"at {percent(risk, 4)} risk it accepts {_pair(after, before, 0, ' %')} of the images"
    return f"but {accepting}" if opposed else accepting


def _pair(after: float, before: float, decimals: int, unit: str = "") -> str:
    """Write 'a instead of b' in per cent, with the fewest decimals that tell the two apart and from 0 and 100."""
    values = [100 * after, 100 * before]
    if values[0] == values[1]:
        return f"{values[0]:.{decimals}f}{unit}, as before"
    while decimals < MOST_DECIMALS and _rounds_too_much(values, decimals):
        decimals += 1
    return f"{values[0]:.{decimals}f}{unit} instead of {values[1]:.{decimals}f}{unit}"


def _rounds_too_much(values: list[float], decimals: int) -> bool:
    written = [round(value, decimals) for value in values]
    at_an_end = any(text in (0, 100) and text != value for text, value in zip(written, values, strict=True))
    return written[0] == written[1] or at_an_end


def _difference(one: Estimate, level: float) -> str:
    ends = one.difference_interval or Interval(0.0, 0.0)
    return (
        f"difference {100 * (one.difference or 0.0):+.2f}, {percent(level)} interval "
        f"{100 * ends.low:+.2f} to {100 * ends.high:+.2f}"
    )


def _counted(fewer: int, study: Study) -> str:
    kind = "error" if study.n_errors <= study.n_images - study.n_errors else "right answer"
    return f"{fewer} {kind}{'' if fewer == 1 else 's'}"


def _images(study: Study) -> str:
    return "1 image" if study.n_images == 1 else f"{study.n_images:,} images"
