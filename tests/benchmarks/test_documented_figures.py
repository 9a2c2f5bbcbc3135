"""Every figure of the pages about benchmarks, scale, monitoring, service and deployment, and of README.md is real."""

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
SCALE = ROOT / "docs" / "scale.md"
SERVICE = ROOT / "docs" / "service.md"
DEPLOY = ROOT / "docs" / "deploy.md"
RESULTS = ROOT / "benchmarks" / "results"

NETWORKS = ("ResNet-50", "Wide-ResNet-16-2")
PREFIXES = {
    "Beside ttach": "",
    "Adaptive looking": "",
    "CPU and GPU": "",
    "Number types": "",
    "One image at a time": "",
    "Memory": "",
    "What the time goes to": "ResNet-50 bfloat16, collect from device tensors: ",
    "How busy the chip is": "",
    "The kernels that dominate": "ResNet-50 bfloat16, collect from device tensors: kernel ",
}
"""The sections whose tables have a row for each `what` and a column for each `measure`, and how `what` begins."""

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?")
ABSENT = "–"

Row = dict[str, str]


class Figure(NamedTuple):
    """A figure of a page, with what it says to measure."""

    what: str
    measure: str
    text: str


def read_results(name: str) -> list[Row]:
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_table(heading: str, page: Path = PAGE) -> list[list[str]]:
    """Return the cells of the table below a heading, without backticks; the first row is its head."""
    lines = page.read_text(encoding="utf-8").splitlines()
    below = lines[next(place for place, line in enumerate(lines) if line.lstrip("# ") == heading and line[:1] == "#") :]
    start = next(place for place, line in enumerate(below) if line.startswith("|"))
    table = below[start : below.index("", start)]
    cells = [[cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    return [cells[0], *cells[2:]]


def list_speeds(network: str) -> Iterator[Figure]:
    """Yield images/s and, in brackets, the ratio to the floor; for the floor itself, forwards/s."""
    head, *rows = read_table(network)
    for job, *cells in rows:
        measures = ("images/s", "forwards/s" if job == "bare forward" else "ratio to bare forward")
        for column, cell in zip(head[1:], cells, strict=True):
            numbers = NUMBER.findall(cell)
            assert len(numbers) in (1, 2) or cell == ABSENT, cell
            yield from (Figure(f"{network} {column}, {job}", *pair) for pair in zip(measures, numbers, strict=False))


def list_figures(heading: str) -> Iterator[Figure]:
    (_, *measures), *rows = read_table(heading)
    for label, *cells in rows:
        for measure, cell in zip(measures, cells, strict=True):
            if cell != ABSENT:
                yield Figure(PREFIXES[heading] + label, measure, cell)


def is_rounded(text: str, value: float) -> bool:
    """Whether a number, or a percentage, is a value rounded to the digits shown."""
    number = Decimal(text.removesuffix("%").replace(",", "").strip())
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), text
    shown = 100 * value if text.endswith("%") else value
    if number == 0:
        return value == 0
    # The values are rounded, too, to five significant digits.
    return abs(float(number) - shown) <= 0.5 * 10.0**exponent + 1e-5 * abs(shown)


def test_gpu_figures_are_the_measured_ones() -> None:
    remaining: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_results("gpu.csv"):
        remaining[row["what"].strip(), row["measure"]].append(float(row["value"]))
    speeds = (figure for network in NETWORKS for figure in list_speeds(network))
    others = (figure for heading in PREFIXES for figure in list_figures(heading))
    for what, measure, text in chain(speeds, others):
        assert remaining[what, measure], f"{what!r}, {measure!r} was not measured"
        value = remaining[what, measure].pop(0)  # kernels may have the same short name; they are in order
        assert is_rounded(text, value), (what, measure, text, value)
    assert [key for key, values in remaining.items() if values] == [], "measured, but not in the page"


def test_cpu_figures_are_the_measured_ones() -> None:
    measured = {(row["way"], row["views"]): row for row in read_results("peers_speed.csv")}
    documented = read_table("On a CPU, beside ttach and MONAI")[1:]
    columns = ("images_per_second", "ratio_to_forward")
    for way, *cells, difference in documented:
        for views, pair in (("2", cells[:2]), ("4", cells[2:])):
            for column, text in zip(columns, pair, strict=True):
                assert is_rounded(text, float(measured[way, views][column])), (way, views, column, text)
        found = [measured[way, views]["largest_difference"] for views in ("2", "4")]
        expected = max(map(float, found)) if all(found) else None
        assert difference == ABSENT if expected is None else is_rounded(difference, expected), (way, difference)
    assert sorted(row[0] for row in documented) == sorted({way for way, _ in measured})


@pytest.mark.parametrize("name", ["gpu.csv", "peers_speed.csv"])
def test_circumstances_are_the_measured_ones(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for row in read_results(name):
        versions = dict(part.rsplit(" ", 1) for part in row["versions"].split("; "))
        named = [row["date"], *(f"{package} {versions[package]}" for package in ("torch", "ttach"))]
        named += [f"MONAI {versions['monai']}"] if "monai" in versions else []
        named += [row["device"], row["driver"], row["cuda"]] if "device" in row else []
        assert [text for text in named if text not in page] == []


README_FIGURES = {
    r"([\d.]+) % of the speed of the bare forward": (
        "ResNet-50 bfloat16, collect from device tensors",
        "ratio to bare forward",
    ),
    r"([\d,]+) images/s with 24 views each": ("ResNet-50 bfloat16, collect from device tensors", "images/s"),
    r"([\d.]+) times as fast as all looks": (
        "Wide-ResNet-16-2 float32, score, adaptive",
        "times as fast as all looks",
    ),
}


@pytest.mark.parametrize("pattern", README_FIGURES)
def test_figures_of_the_readme_are_the_measured_ones(pattern: str) -> None:
    (text,) = re.findall(pattern, " ".join(README.read_text(encoding="utf-8").split()))
    wanted = README_FIGURES[pattern]
    (value,) = (float(row["value"]) for row in read_results("gpu.csv") if (row["what"], row["measure"]) == wanted)
    assert is_rounded(f"{text} %" if "%" in pattern else text, value)


def test_figures_of_the_cluster_are_the_measured_ones() -> None:
    measured = {(row["what"], row["measure"]): float(row["value"]) for row in read_results("cluster.csv")}
    documented = {(what, measure): text for what, measure, text in read_table("What to expect", SCALE)[1:]}
    assert documented.keys() == measured.keys()
    for key, text in documented.items():
        assert is_rounded(text, measured[key]), (key, text)
    (row, *_) = read_results("cluster.csv")
    page = SCALE.read_text(encoding="utf-8")
    assert row["date"] in page
    assert re.search(r"ray (\S+?);?$", row["versions"]) is not None
    assert re.findall(r"; (ray [\d.]+)", row["versions"])[0].capitalize() in page


def test_figures_of_the_service_are_the_measured_ones() -> None:
    rows = read_results("service.csv")
    measured = {(row["what"], row["measure"]): float(row["value"]) for row in rows}
    documented = {(what, measure): text for what, measure, text in read_table("Speed", SERVICE)[1:]}
    assert documented.keys() == measured.keys()
    for key, text in documented.items():
        assert is_rounded(text, measured[key]), (key, text)
    assert all(row["date"] in SERVICE.read_text(encoding="utf-8") for row in rows)


def test_arithmetic_for_a_billion_images() -> None:
    """GPU figures are those of ResNet-50 in gpu.csv, bytes those of cluster.csv, and the rest follows from them."""
    gpu = {(row["what"], row["measure"]): float(row["value"]) for row in read_results("gpu.csv")}
    sizes = {(row["what"], row["measure"]): float(row["value"]) for row in read_results("cluster.csv")}
    what = "ResNet-50 bfloat16, score with a made-up rule, "
    speeds = [gpu[what + looking, "images/s"] for looking in ("all looks", "adaptive")]
    looks = [24.0, gpu[what + "adaptive", "mean looks"]]
    decoded_by_core = gpu["ResNet-50 bfloat16, decoding and fitting JPEG files alone", "images/s"] / 16
    expected: dict[str, list[float]] = {
        "forward passes, billions": looks,
        "images/s of one H200": speeds,
        "GPU hours": [1e9 / speed / 3600 for speed in speeds],
        "hours on 16 GPUs": [1e9 / speed / 3600 / 16 for speed in speeds],
        "dollars at 3 per GPU hour": [3 * 1e9 / speed / 3600 for speed in speeds],
        "cores that decode JPEG files for one GPU": [speed / decoded_by_core for speed in speeds],
        "MB/s that one GPU reads, at 100 kB per image": [speed * 0.1 for speed in speeds],
        "TB read, at 100 kB per image": [100, 100],
        "GB of rows": [sizes["rows of scores", "bytes per image"]] * 2,
    }
    documented = {name: cells for name, *cells in read_table("A billion images", SCALE)[1:]}
    assert documented.keys() == expected.keys()
    for name, cells in documented.items():
        for text, value in zip(cells, expected[name], strict=True):
            assert is_rounded(text, value), (name, text, value)


MONITORING = ROOT / "docs" / "monitoring.md"


def percent(value: str, digits: int = 1) -> str:
    return f"{100 * float(value):.{digits}f} %"


def points(value: str) -> str:
    return f"{100 * float(value):.1f}"


def count(value: str) -> str:
    return "never" if float(value) == float("inf") else f"{float(value):,.0f}"


def select(rows: list[Row], **wanted: str) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def expect_simulated() -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the tables of simulated streams, by their headings."""
    rows = read_results("monitoring_simulated.csv")
    quiet = select(rows, measured="false alarms of the shift alarm")
    yield (
        "False alarms",
        [
            [
                count(row["calibration"]),
                row["values"],
                *(percent(row[f"alarms_{name}"], 2) for name in ("share", "high")),
            ]
            for row in quiet
        ],
    )
    yield (
        "False verdicts of audits",
        [
            [
                *(row["design"], f"{100 * float(row['audit_rate']):g} %", row["errors"]),
                *(percent(row[f"alarms_{name}"], 2) for name in ("share", "high")),
            ]
            for row in select(rows, measured="false verdicts of audits")
        ],
    )
    delays = select(rows, measured="images until the shift alarm")
    yield (
        "Images until the shift alarm",
        [
            [
                shift,
                *(
                    f"{count(row['images_until_median'])} ({count(row['images_until_90'])})"
                    for row in select(delays, shift=shift)
                ),
            ]
            for shift in dict.fromkeys(row["shift"] for row in delays)
        ],
    )
    labels = select(rows, measured="labels until broken")
    kinds = dict.fromkeys((row["error_rate"], row["errors"]) for row in labels)
    yield (
        "Labels until a broken guarantee is found",
        [
            [
                *(f"{100 * float(rate):g} %", errors),
                *(
                    f"{count(row['labels_until_mean'])} ({count(row['labels_until_median'])})"
                    for row in select(labels, error_rate=rate, errors=errors)
                ),
            ]
            for rate, errors in kinds
        ],
    )


def expect_real() -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the tables of real classifiers, by their headings."""
    rows = read_results("monitoring_estimates.csv")
    classifiers = list(dict.fromkeys(row["classifier"] for row in rows))
    middle = select(rows, strength="2")
    yield (
        "Images until the alarm on corrupted images",
        [
            [
                corruption,
                *(
                    f"{count(row['alarm, median'])} ({count(row['alarm, 90 %'])})"
                    for row in select(middle, corruption=corruption)
                ),
            ]
            for corruption in dict.fromkeys(row["corruption"] for row in middle)
        ],
    )
    means = select(rows, corruption="mean")
    assert [row["classifier"] for row in means] == classifiers
    baselines = [f"accuracy, {name}" for name in ("cbpe mean", "atc msr", "atc mean", "shifts")]
    yield (
        "Estimates without labels",
        [
            [
                *(row["classifier"], *(points(row[name]) for name in baselines)),
                percent(row["accuracy hit, shifts"], 0),
                *(points(row[name]) for name in ("window error", "mix error, atc mean", "mix error, shifts")),
                *(points(row[name]) for name in ("risk, no shifts", "risk, shifts")),
                percent(row["risk hit, shifts"], 0),
            ]
            for row in means
        ],
    )
    audits = read_results("monitoring_audits.csv")
    yield (
        "Labels with real classifiers",
        [
            [
                *(name, f"{100 * float(rate):g} %"),
                *map(describe_audits, select(audits, classifier=name, error_rate=rate)),
            ]
            for name, rate in dict.fromkeys((row["classifier"], row["error_rate"]) for row in audits)
        ],
    )


def describe_audits(row: Row) -> str:
    found = f"{row['alarms']} of {row['streams']}"
    if row["error_rate"] == row["risk"]:
        return found
    return f"{found}, {count(row['labels_until_mean'])} ({count(row['labels_until_median'])})"


@pytest.mark.parametrize("expect", [expect_simulated, expect_real])
def test_figures_of_monitoring_are_the_measured_ones(
    expect: Callable[[], Iterator[tuple[str, list[list[str]]]]],
) -> None:
    for heading, expected in expect():
        assert read_table(heading, MONITORING)[1:] == expected, heading


def test_figures_of_class_thresholds_are_the_measured_ones() -> None:
    shares = ("coverage", "worst_class_risk_seen", "class_coverage")
    expected = [
        [
            *(row["classifier"], f"{100 * float(row['risk']):g} %", *(percent(row[name]) for name in shares)),
            *(f"{row['certified_classes']} of {row['classes']}", percent(row["bonferroni_coverage"])),
        ]
        for row in read_results("monitoring_groups.csv")
    ]
    assert read_table("What every class costs", ROOT / "docs" / "policies.md")[1:] == expected


@pytest.mark.parametrize("heading", ["Equality", "Run time", "Adaptive files", "Size"])
def test_figures_of_deployment_are_the_measured_ones(heading: str) -> None:
    rows = read_results("export.csv")
    measured = {(row["what"], row["measure"]): float(row["value"]) for row in rows}
    for what, measure, text in read_table(heading, DEPLOY)[1:]:
        assert is_rounded(text, measured[what, measure]), (what, measure, text)
    assert all(row["date"] in DEPLOY.read_text(encoding="utf-8") for row in rows)
