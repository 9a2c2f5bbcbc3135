"""Every table of figures in README and in the pages about benchmarks and clusters is from the kept results."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from scripts import draw_landing

ROOT = Path(__file__).resolve().parents[2]
PAGE, CLUSTER, MONITORING = (
    ROOT / "docs" / f"{name}.md" for name in ("background/benchmarks", "cluster", "monitoring")
)
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"

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
                yield Figure(label, measure, cell)


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
    measured = {(what.strip(), measure): value for (what, measure), value in read_values("gpu.csv").items()}
    for what, measure, text in chain(list_speeds("ResNet-50"), list_figures("Adaptive looking")):
        assert is_rounded(text, measured[what, measure]), (what, measure, text)


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


def test_circumstances_are_the_measured_ones() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for row in (*read_results("gpu.csv"), *read_results("peers_speed.csv")):
        versions = dict(part.rsplit(" ", 1) for part in row["versions"].split("; "))
        named = [row["date"], *(f"{package} {versions[package]}" for package in ("torch", "ttach"))]
        named += [f"MONAI {versions['monai']}"] if "monai" in versions else []
        named += [row["device"], row["driver"], row["cuda"]] if "device" in row else []
        assert [text for text in named if text not in page] == []


def test_figures_of_tables_of_values_are_the_measured_ones() -> None:
    names = ("cluster.csv", "service.csv", "export.csv")
    measured = {key: value for name in names for key, value in read_values(name).items()}
    for what, measure, text in read_table("Cluster, service and exported files")[1:]:
        assert is_rounded(text, measured[what, measure]), (what, measure, text)
    content = PAGE.read_text(encoding="utf-8")
    for row in chain.from_iterable(map(read_results, names)):
        assert row["date"] in content
        assert all(version.capitalize() in content for version in re.findall(r"; (ray [\d.]+)", row["versions"]))


def test_readme_is_short_and_its_result_is_measured() -> None:
    assert len(README.read_text(encoding="utf-8").partition("## What else it does")[0].split()) <= 500
    with (ROOT / "reproduction" / "results" / "cifar10-resnet" / "results.csv").open(encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if (row["column"], row["metric"]) == ("resnet56", "aorc_joint")]
    auroc = {row["method"]: float(row["value"]) for row in found if (row["piece"], row["by"]) == ("methods", "x")}
    coverages: dict[str, list[float]] = defaultdict(list)
    for row in read_results("guarantee_cifar10.csv"):
        if (row["risk"], row["delta"]) == ("0.01", "0.001"):
            coverages[row["method"]].append(float(row["coverage"]))
    coverage = {method: sum(values) / len(values) for method, values in coverages.items()}
    expected = [(auroc["MSR(x)"], auroc["MSR(D)"]), (coverage["msr"], coverage["mean"])]
    documented = [[cell.strip("* %") for cell in row[1:]] for row in read_table("What it gains", README)[1:]]
    assert documented == [[f"{100 * value:.1f}" for value in pair] for pair in expected]


def test_picture_of_the_home_page_is_measured() -> None:
    picture = draw_landing.OUTPUT.read_text(encoding="utf-8")
    assert picture == draw_landing.draw_picture()
    rows = read_results("guarantee_cifar10.csv")
    accepted = {name: [float(row["coverage"]) for row in rows if row["method"] == name] for name in ("msr", "mean")}
    shares = [sum(values) / len(values) for values in accepted.values()]
    expected = [f"{100 * one:.0f}" for share in shares for one in (share, 1 - share)]
    assert re.findall(r'class="inside"[^>]*>(\d+) %', picture) == expected
    assert f">{100 * (1 - (1 - shares[1]) / (1 - shares[0])):.0f} % fewer" in picture
    assert {len(values) for values in accepted.values()} == {50}
    assert {(row["risk"], row["delta"]) for row in rows} == {("0.01", "0.001")}


def test_arithmetic_for_a_billion_images() -> None:
    """The speeds are those of ResNet-50 in gpu.csv, and the rest follows from them."""
    gpu = read_values("gpu.csv")
    what = "ResNet-50 bfloat16, score with a made-up rule, "
    speeds = [gpu[what + looking, "images/s"] for looking in ("all looks", "adaptive")]
    looks = [24.0, gpu[what + "adaptive", "mean looks"]]
    decoded_by_core = gpu["ResNet-50 bfloat16, decoding and fitting JPEG files alone", "images/s"] / 16
    expected: dict[str, list[float]] = {
        "forward passes, billions": looks,
        "images/s of one H200": speeds,
        "GPU hours": [1e9 / speed / 3600 for speed in speeds],
        "dollars at 3 per GPU hour": [3 * 1e9 / speed / 3600 for speed in speeds],
        "cores that decode JPEG files for one GPU": [speed / decoded_by_core for speed in speeds],
    }
    documented = {name: cells for name, *cells in read_table("Plan a large job", CLUSTER)[1:]}
    assert documented.keys() == expected.keys()
    for name, cells in documented.items():
        for text, value in zip(cells, expected[name], strict=True):
            assert is_rounded(text, value), (name, text, value)


def percents(row: Row, *names: str) -> list[str]:
    return [f"{100 * float(row[name]):.1f} %" for name in names]


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


def expect_reviewers() -> Iterator[Table]:
    """Yield the tables of streams whose reviewers err, by their headings."""
    rows = read_results("reviewers.csv")
    protocol = ("reviewer_error", "stated", "agreeing", "double_review", "errors")
    found: dict[str, list[list[str]]] = {
        "False verdicts with reviewers who err": [],
        "Labels with reviewers who err": [],
    }
    for wanted in map(dict, dict.fromkeys(tuple((name, row[name]) for name in protocol) for row in rows)):
        error, stated, agreeing, double, errors = wanted.values()
        described = [rate(error), rate(stated), agreeing, rate(double), errors]
        same = select(rows, **wanted)
        false = select(same, measured="false broken", error_rate="0.01")
        found["False verdicts with reviewers who err"].append(
            [*described, *(percents(row, "alarms_share")[0] for row in false)]
        )
        ratios = [f"{float(row['ratio_mean']):.2f}" for row in same if row["ratio_mean"]]
        found["Labels with reviewers who err"].append([*described, *ratios])
    yield from found.items()


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
    pages = (("benchmarks", expect_simulated), ("benchmarks", expect_reviewers), ("proofs", expect_groups))
    for page, expect in pages:
        for heading, expected in expect():
            documented = read_table(heading, ROOT / "docs" / "background" / f"{page}.md")[1:]
            assert [row for row in documented if row not in expected] == [], heading


def test_ranges_of_monitoring_are_the_measured_ones() -> None:
    simulated, real = read_results("monitoring_simulated.csv"), read_results("monitoring_estimates.csv")
    means, middle = select(real, corruption="mean"), select(real, strength="2")
    ranges = [
        describe_range(select(simulated, measured="false alarms of the shift alarm"), "alarms_share", 100, 2),
        describe_range(select(simulated, measured="false verdicts of audits"), "alarms_share", 100, 2),
        describe_range(middle, "alarm, median", 1, 0),
    ]
    errors = [describe_range(means, f"accuracy, {name}", 100, 1) for name in ("shifts", "atc mean")]
    for page, expected in ((PAGE, ranges + errors), (MONITORING, errors)):
        text = " ".join(page.read_text(encoding="utf-8").split())
        assert [one for one in expected if one not in text] == []


def describe_range(rows: list[Row], name: str, factor: float, digits: int) -> str:
    values = [factor * float(row[name]) for row in rows]
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
