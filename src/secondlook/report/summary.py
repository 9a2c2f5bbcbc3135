"""The summary of a report: what is decided automatically, and what is guaranteed, for any reader."""

from dataclasses import dataclass

from secondlook.policies import Policy
from secondlook.report.findings import Findings
from secondlook.report.operating_points import describe_policy, format_percent
from secondlook.report.study import name_method

Texts = tuple[str, bool, str, str, str, str]
"""The fields of a summary from `badge`."""
NEW_IMAGES = 10_000
GROUPS = {"class": " in every predicted class", "classes": " in every group of classes", "label": " in every group"}


@dataclass(frozen=True)
class Summary:
    """The first screen of a report; after a calibration, its counts are those of the calibration."""

    images: int
    accepted: int
    errors: int
    """Errors among the accepted images."""
    decided_by: str
    badge: str
    certified: bool
    verdict: str
    meaning: str
    guarantee: str
    next_step: str

    @property
    def shares(self) -> list[tuple[str, str, float]]:
        """Style, words and share of the images that are decided correctly, decided wrongly, and sent to people."""
        counts = (self.accepted - self.errors, self.errors, self.images - self.accepted)
        texts = {"correct": "decided correctly", "wrong": "decided wrongly", "people": "sent to people"}
        return [(style, text, n / self.images) for (style, text), n in zip(texts.items(), counts, strict=True)]


def summarize(findings: Findings) -> Summary:
    """Return the summary of a report."""
    policy, method = findings.study.policy, name_method(findings.method)
    images, accepted, errors = findings.study.n_images, findings.point.accepted, findings.point.errors
    if policy is None:
        return Summary(images, accepted, errors, method, *_describe_missing(findings.risk, accepted / images))
    if (found := policy.calibration) is not None:
        images, accepted, errors = found.images, found.accepted, found.errors or 0
    decided_by = f"{method}: {describe_policy(policy)}"
    describe = _describe_uncertified if policy.guarantee is None else _describe_certified
    return Summary(images, accepted, errors, decided_by, *describe(policy, images, accepted, errors))


def _describe_missing(risk: float, share: float) -> Texts:
    return (
        "– Not calibrated",
        False,
        "No policy is calibrated yet, so nothing is guaranteed.",
        _expect(share, f"if {format_percent(risk, 4)} errors among them are tolerated", "could be"),
        "none",
        "Choose the error rate that you can accept, and calibrate a policy for it.",
    )


def _describe_uncertified(policy: Policy, images: int, accepted: int, errors: int) -> Texts:
    bound = "but no error rate is guaranteed"
    if policy.average_risk is not None:
        bound = f"with at most {format_percent(policy.average_risk, 4)} of them wrong on average over calibrations"
        bound += "; for this calibration nothing is guaranteed"
    observed = format_percent(errors / max(accepted, 1))
    return (
        "– Not certified",
        False,
        f"This policy decides {format_percent(accepted / images, 1)} of the images automatically, {bound}.",
        _expect(accepted / images, f"about {observed} of these wrong, as observed and not guaranteed"),
        "none",
        "Calibrate a policy with a guaranteed error rate before you rely on its decisions.",
    )


def _describe_certified(policy: Policy, images: int, accepted: int, _: int) -> Texts:
    guarantee = policy.guarantee
    assert guarantee is not None, "the policy is certified"
    risk, level = format_percent(guarantee.risk, 4), format_percent(1 - guarantee.delta, 6)
    where = GROUPS.get(guarantee.grouped_by or "", "")
    if guarantee.smallest_risk is not None:
        where += f" (down to {format_percent(guarantee.smallest_risk, 4)} in some)"
    share = format_percent(accepted / images, 1)
    return (
        f"✓ Guaranteed with {level} confidence",
        True,
        f"This policy decides {share} of the images automatically, with at most {risk} of them wrong{where}.",
        _expect(accepted / images, f"at most {risk} of these wrong"),
        f"at most {risk} wrong",
        "Let the policy decide new images, send the others to people, and check regularly that the guarantee holds.",
    )


def _expect(share: float, errors: str, are: str = "are") -> str:
    """Say what happens to new images, of which this share is decided automatically."""
    accepted = 10 * round(NEW_IMAGES * share / 10)
    automatic = f"about {accepted:,} {are} decided automatically, {errors}"
    people = f"about {NEW_IMAGES - accepted:,} {'would ' if are != 'are' else ''}go to people"
    return f"Of {NEW_IMAGES:,} new images like these, {automatic}; {people}."
