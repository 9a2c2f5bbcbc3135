"""Every figure of the pages about benchmarks, scale, monitoring, service and deployment, and of README.md is real."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE, SCALE, SERVICE, DEPLOY = (ROOT / "docs" / f"{name}.md" for name in ("benchmarks", "scale", "service", "deploy"))
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"

NETWORKS = ("ResNet-50", "Wide-ResNet-16-2")
COLLECTED = "ResNet-50 bfloat16, collect from device tensors"
PLAIN = ("Beside ttach", "Adaptive looking", "CPU and GPU", "Number types", "One image at a time", "Memory")
PREFIXES = dict.fromkeys((*PLAIN, "How busy the chip is"), "") | {
    "What the time goes to": f"{COLLECTED}: ",
    "The kernels that dominate": f"{COLLECTED}: kernel ",
}
"""The sections whose tables have a row for each `what` and a column for each `measure`, and how `what` begins."""

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?")
ABSENT = "–"

Row = dict[str, str]
Table = tuple[str, list[list[str]]]


class Figure(NamedTuple):
    """A figure of a page, with what it says to measure."""

    what: str
    measure: str
    text: str


def read_results(name: str) -> list[Row]:
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_values(name: str) -> dict[tuple[str, str], float]:
    """Return the values of a file by what was measured and how."""
    return {(row["what"], row["measure"]): float(row["value"]) for row in read_results(name)}


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


def test_circumstances_are_the_measured_ones() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for row in (*read_results("gpu.csv"), *read_results("peers_speed.csv")):
        versions = dict(part.rsplit(" ", 1) for part in row["versions"].split("; "))
        named = [row["date"], *(f"{package} {versions[package]}" for package in ("torch", "ttach"))]
        named += [f"MONAI {versions['monai']}"] if "monai" in versions else []
        named += [row["device"], row["driver"], row["cuda"]] if "device" in row else []
        assert [text for text in named if text not in page] == []


def test_figures_of_the_readme_are_the_measured_ones() -> None:
    readme, adaptive = " ".join(README.read_text(encoding="utf-8").split()), "Wide-ResNet-16-2 float32, score, adaptive"
    for pattern, what, measure in (
        (r"([\d.]+ %) of the speed of the bare forward", COLLECTED, "ratio to bare forward"),
        (r"([\d,]+) images/s with 24 views each", COLLECTED, "images/s"),
        (r"([\d.]+) times as fast as all looks", adaptive, "times as fast as all looks"),
    ):
        (text,) = re.findall(pattern, readme)
        assert is_rounded(text, read_values("gpu.csv")[what, measure])


@pytest.mark.parametrize(
    ("name", "page", "headings"),
    [
        ("cluster.csv", SCALE, ["What to expect"]),
        ("service.csv", SERVICE, ["Speed"]),
        ("export.csv", DEPLOY, ["Equality", "Run time", "Adaptive files", "Size"]),
    ],
)
def test_figures_of_tables_of_values_are_the_measured_ones(name: str, page: Path, headings: list[str]) -> None:
    measured = read_values(name)
    rows = [row for heading in headings for row in read_table(heading, page)[1:]]
    documented = {(what, measure): text for what, measure, text in rows}
    assert len(headings) > 1 or documented.keys() == measured.keys()
    assert [key for key, text in documented.items() if not is_rounded(text, measured[key])] == []
    content = page.read_text(encoding="utf-8")
    for row in read_results(name):
        assert row["date"] in content
        assert all(version.capitalize() in content for version in re.findall(r"; (ray [\d.]+)", row["versions"]))


def test_arithmetic_for_a_billion_images() -> None:
    """GPU figures are those of ResNet-50 in gpu.csv, bytes those of cluster.csv, and the rest follows from them."""
    gpu, sizes = read_values("gpu.csv"), read_values("cluster.csv")
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


def percents(row: Row, *names: str, digits: int = 1) -> list[str]:
    return [f"{100 * float(row[name]):.{digits}f} %" for name in names]


def points(row: Row, *names: str) -> list[str]:
    return [f"{100 * float(row[name]):.1f}" for name in names]


def rate(value: str) -> str:
    return f"{100 * float(value):g} %"


def count(value: str) -> str:
    return "never" if float(value) == float("inf") else f"{float(value):,.0f}"


def counts(rows: list[Row], outer: str, inner: str) -> list[str]:
    return [f"{count(row[outer])} ({count(row[inner])})" for row in rows]


def select(rows: list[Row], **wanted: str) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def expect_simulated() -> Iterator[Table]:
    """Yield the tables of simulated streams, by their headings."""
    rows = read_results("monitoring_simulated.csv")
    quiet = select(rows, measured="false alarms of the shift alarm")
    yield "False alarms", [[count(row["calibration"]), row["values"], *list_alarms(row)] for row in quiet]
    false = select(rows, measured="false verdicts of audits")
    found = [[row["design"], rate(row["audit_rate"]), row["errors"], *list_alarms(row)] for row in false]
    yield "False verdicts of audits", found
    delays = select(rows, measured="images until the shift alarm")
    names = ("images_until_median", "images_until_90")
    shifts = dict.fromkeys(row["shift"] for row in delays)
    found = [[shift, *counts(select(delays, shift=shift), *names)] for shift in shifts]
    yield "Images until the shift alarm", found
    labels = select(rows, measured="labels until broken")
    names = ("labels_until_mean", "labels_until_median")
    found = []
    for one, errors in dict.fromkeys((row["error_rate"], row["errors"]) for row in labels):
        found.append([rate(one), errors, *counts(select(labels, error_rate=one, errors=errors), *names)])
    yield "Labels until a broken guarantee is found", found


def list_alarms(row: Row) -> list[str]:
    return percents(row, "alarms_share", "alarms_high", digits=2)


def expect_real() -> Iterator[Table]:
    """Yield the tables of real classifiers, by their headings."""
    rows = read_results("monitoring_estimates.csv")
    middle, means = select(rows, strength="2"), select(rows, corruption="mean")
    kinds = dict.fromkeys(row["corruption"] for row in middle)
    found = [[kind, *counts(select(middle, corruption=kind), "alarm, median", "alarm, 90 %")] for kind in kinds]
    yield "Images until the alarm on corrupted images", found
    assert [row["classifier"] for row in means] == list(dict.fromkeys(row["classifier"] for row in rows))
    baselines = [f"accuracy, {name}" for name in ("cbpe mean", "atc msr", "atc mean", "shifts")]
    errors = ("window error", "mix error, atc mean", "mix error, shifts", "risk, no shifts", "risk, shifts")
    estimates = []
    for row in means:
        first = [row["classifier"], *points(row, *baselines), *percents(row, "accuracy hit, shifts", digits=0)]
        estimates.append([*first, *points(row, *errors), *percents(row, "risk hit, shifts", digits=0)])
    yield "Estimates without labels", estimates
    audits = read_results("monitoring_audits.csv")
    found = []
    for name, one in dict.fromkeys((row["classifier"], row["error_rate"]) for row in audits):
        found.append([name, rate(one), *map(describe_audits, select(audits, classifier=name, error_rate=one))])
    yield "Labels with real classifiers", found


def describe_audits(row: Row) -> str:
    found = f"{row['alarms']} of {row['streams']}"
    if row["error_rate"] == row["risk"]:
        return found
    return f"{found}, {count(row['labels_until_mean'])} ({count(row['labels_until_median'])})"


def expect_groups() -> Iterator[Table]:
    """Yield the table of thresholds per class."""
    rows = read_results("monitoring_groups.csv")
    shares = ("coverage", "worst_class_risk_seen", "class_coverage")
    certified = [f"{row['certified_classes']} of {row['classes']}" for row in rows]
    found = [
        [row["classifier"], rate(row["risk"]), *percents(row, *shares), one, *percents(row, "bonferroni_coverage")]
        for row, one in zip(rows, certified, strict=True)
    ]
    yield "What every class costs", found


def test_figures_of_monitoring_and_groups_are_the_measured_ones() -> None:
    for page, expect in (("monitoring", expect_simulated), ("monitoring", expect_real), ("background/proofs", expect_groups)):
        for heading, expected in expect():
            assert read_table(heading, ROOT / "docs" / f"{page}.md")[1:] == expected, heading
