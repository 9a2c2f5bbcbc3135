"""`write_monitor_page`: the state of a monitor as one self-contained HTML file."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import as_pixels
from secondlook.classifiers import Preprocessing
from secondlook.errors import SecondLookError
from secondlook.monitoring import AccuracyEstimate, Monitor, MonitorStatus, name_label
from secondlook.policies import Policy
from secondlook.report.page import (
    IMAGE_QUALITY,
    IMAGE_SIDE,
    encode_picture,
    make_thumbnail,
    render_template,
    use_unbroken_spaces,
    write_file,
)
from secondlook.sources import Source, UnreadableImageError
from secondlook.tables import format_power_of_ten, format_rate

WINDOW_FIELDS = ("start", "images", "coverage", "confidence", "disagreement", "audit_low", "audit_high")
CALIBRATE = (
    "secondlook calibrate --reviewed labels.csv --policy policy.json --scores 'scores/*.parquet' --out fresh.json"
)


def write_monitor_page(
    monitor: Monitor,
    out: str | Path,
    *,
    source: Source | None = None,
    command: str = CALIBRATE,
) -> Path:
    """Write the state of a monitor as an offline HTML page, and return its path.

    Parameters
    ----------
    monitor
        The monitor, after at least as many images as its burn-in.
    out
        The HTML file to write.
    source
        The scored images, to show the worst ones; missing images are only listed.
    command
        The command that calibrates a new policy, shown after an alarm.
    """
    policy, status, windows, worst = monitor.policy, monitor.status(), monitor.timeline(), monitor.worst_images()
    names = policy.class_names
    plots = describe_monitor_plots(monitor, status)
    page = render_template(
        "monitor.html",
        styles="design monitor summary",
        scripts="arrays chart tables timeline risk_scale monitor",
        data=plots["timeline"],
        filters={
            "classes": lambda classes: ", ".join(name_label(one, names) for one in classes),
            "share": lambda share: "–" if share is None else use_unbroken_spaces(format_rate(share)),
            "evidence": format_power_of_ten,
            "mean": lambda value: "–" if value is None else f"{value:.3g}",
            "ends": _format_ends,
        },
        title="Does the guarantee still hold?",
        status=status,
        meaning=AccuracyEstimate.MEANING,
        command=command,
        windows=windows,
        window_size=windows[0].images,
        max_open_windows=24,  # a longer table is collapsed
        has_disagreement=any(window.disagreement is not None for window in windows),
        captions=plots["captions"],
        worst=worst,
        n_wrong=sum(image.wrong is True for image in worst),
        pictures={} if source is None else _read_pictures(worst, source, policy),
        guarantee=policy.guarantee_text,
        facts={
            "policy": f"{policy.method} ≥ {policy.threshold:.6g}, made {policy.made}",
            **({} if policy.familiarity is None else {"smallest familiarity": f"{policy.familiarity.limit:.6g}"}),
            "policy checksum": policy.checksum,
            "classifier": policy.known_classifier.name,
            "views": " ".join(policy.views),
            "failure probability of each alarm (alpha)": f"{monitor.alpha:g}",
            "window": f"{monitor.window:,} images",
            "burn-in": f"{monitor.burn_in:,} images",
            "seed": str(monitor.seed),
        },
        files=monitor.files,
        max_files=200,
    )
    write_file(Path(out), page.encode("utf-8"))
    return Path(out)


def describe_monitor_plots(monitor: Monitor, status: MonitorStatus) -> dict[str, dict[str, Any]]:
    """Return the captions of the plots, and their numbers as JSON values for the script `timeline.js`."""
    reference = monitor.policy.reference
    assert reference is not None, "monitors require a reference"
    compared = reference.disagreement
    timeline = {
        "images": status.images,
        "guaranteed": None if status.guarantee is None else status.guarantee.risk,
        "calibration": {
            "coverage": status.calibration_coverage,
            "confidence": _mean(reference.confidence.edges, reference.confidence.counts),
            "disagreement": None if compared is None else _mean(compared.edges, compared.counts),
            "unknown": None,
        },
        "scale": _describe_scale(status),
        "shift": {"raised_at": status.shift.raised_at, "limit": status.shift.log10_limit},
        "audit": _describe_audit_path(monitor),
        "windows": [
            {
                **{name: getattr(window, name) for name in WINDOW_FIELDS},
                "evidence": window.log10_evidence,
                "unknown": window.none_of_these / window.reviewed if window.reviewed else None,
                **{name: getattr(window.estimate, name, None) for name in ("risk", "risk_low", "risk_high")},
            }
            for window in monitor.timeline()
        ],
    }
    return {"captions": _write_captions(status), "timeline": timeline}


def _describe_scale(status: MonitorStatus) -> dict[str, Any]:
    """Return the guaranteed, audited and estimated risk as JSON values for the script `risk_scale.js`."""
    guaranteed, audit, recent = status.guarantee and status.guarantee.risk, status.audit, status.recent
    estimated = None if recent is None or recent.risk is None else recent
    return {
        "limit": guaranteed,
        "guaranteed": guaranteed,
        "audited": audit and {name: getattr(audit, name) for name in ("low", "high", "estimate", "labels")},
        "estimated": estimated and {"value": estimated.risk, "low": estimated.risk_low, "high": estimated.risk_high},
    }


def _read_pictures(images: Sequence[Any], source: Source, policy: Policy) -> dict[str, str]:
    """Return thumbnails of the readable images as data URIs by id, as seen by the classifier."""
    preprocessing = Preprocessing.from_dict(policy.known_classifier.preprocessing)
    wanted = {image.id for image in images}
    places = {id_: place for place, id_ in enumerate(source.ids) if id_ in wanted}
    pictures: dict[str, str] = {}
    for id_, place in places.items():
        with suppress(UnreadableImageError, SecondLookError):
            pixels = as_pixels(preprocessing.fit([source.read(place)])[0])
            pictures[id_] = encode_picture(make_thumbnail(pixels, IMAGE_SIDE), IMAGE_QUALITY)
    return pictures


def _format_ends(estimate: AccuracyEstimate | None, name: str) -> str:
    low, high = (None if estimate is None else getattr(estimate, f"{name}_{end}") for end in ("low", "high"))
    return "" if low is None or high is None else use_unbroken_spaces(f"{format_rate(low)} to {format_rate(high)}")


def _write_captions(status: MonitorStatus) -> dict[str, str]:
    limit, at = format_power_of_ten(status.shift.log10_limit), status.shift.raised_at
    raised = "It was not raised." if at is None else f"It was raised after {at:,} images."
    interval = ""
    if status.estimate is not None and status.estimate.risk is not None:
        interval = " The interval covers sampling error only: after a shift, the true risk may be far outside."
        if status.estimate.includes_shifts:
            interval = " The interval includes the errors of the estimate on held-out damaged images."
    return {
        "risk": (
            "Error rate among accepted images, in percent: estimated without labels for each window"
            f"{', and bounded from the reviewed audits so far' if status.audit and status.audit.labels else ''}."
            f"{interval}"
        ),
        "evidence": f"Evidence after each window, on a logarithmic scale. The alarm is raised at {limit}. {raised}",
        "coverage": "A falling coverage sends more images to review; a rising one may mean overconfident predictions.",
        "confidence": "Mean over the images of each window.",
        "disagreement": "Mean over the images of each window with more than one look.",
        "unknown": "Share of the reviewed images in each window (rejected images and audits).",
    }


def _describe_audit_path(monitor: Monitor) -> dict[str, list[float]] | None:
    """Return the bounds of the audited risk along the stream, thinned for a plot."""
    path = monitor.audit_path()
    if not path:
        return None
    chosen = np.unique(np.linspace(0, len(path) - 1, min(len(path), 400)).astype(int)).tolist()
    columns = map(list, zip(*(path[index] for index in chosen), strict=True))
    return dict(zip(("images", "low", "high"), columns, strict=True))


def _mean(edges: Sequence[float], counts: Sequence[int]) -> float:
    """Approximate the mean of binned values: each bin counts as its center, the outer ones as their only edge."""
    if not edges:
        return 0.0
    ends = np.array([edges[0], *edges, edges[-1]])
    return float(np.average((ends[:-1] + ends[1:]) / 2, weights=counts))
