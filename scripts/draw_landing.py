"""Draw the picture of the home page: images sent to people at the same guarantee, with one look and with several.

Run: python scripts/draw_landing.py [--output FILE]

The shares are means over the splits of benchmarks/results/guarantee_cifar10.csv, the colors those of the pages.
"""

import argparse
import csv
import re
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "docs" / "images" / "landing.svg"
RESULTS = ROOT / "benchmarks" / "results" / "guarantee_cifar10.csv"
DESIGN = ROOT / "src" / "secondlook" / "report" / "templates" / "design.css"
METHODS = {"One look": "msr", "A second look": "mean"}
WIDTH, HEIGHT, TOP, STEP = 560, 46, 72, 86
PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 258" role="img" aria-labelledby="title">
<title id="title">{title}. {guarantee} {measured}</title>
<style>
:root {{ color-scheme: light dark; }}
text {{ font: 15px {font}; fill: {quiet}; }}
.title {{ font-size: 21px; font-weight: 700; fill: {ink}; }}
.name {{ font-size: 17px; font-weight: 600; fill: {ink}; }}
.inside {{ font-size: 20px; font-weight: 700; fill: {paper}; }}
.accepted {{ fill: {accent}; }}
.review {{ fill: {m0}; }}
</style>
<text y="24" class="title">{title}</text>
{bars}
<text y="230">{guarantee}</text>
<text y="250">{measured}</text>
</svg>
"""


def read_coverages() -> dict[str, float]:
    """Return the mean share of accepted images at 1 % risk, by the name of a bar."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["risk"], row["delta"]) == ("0.01", "0.001")]
    return {
        name: fmean(float(row["coverage"]) for row in rows if row["method"] == method)
        for name, method in METHODS.items()
    }


def draw_bar(name: str, coverage: float, top: int) -> str:
    """Return a bar of accepted images and of images sent to people."""
    end, middle = round(WIDTH * coverage), top + HEIGHT // 2 + 7
    return f"""<text y="{top - 10}" class="name">{name}</text>
<text x="{WIDTH}" y="{top - 10}" text-anchor="end">sent to people</text>
<rect y="{top}" width="{end - 4}" height="{HEIGHT}" rx="6" class="accepted"/>
<rect x="{end}" y="{top}" width="{WIDTH - end}" height="{HEIGHT}" rx="6" class="review"/>
<text x="16" y="{middle}" class="inside">{100 * coverage:.0f} % accepted</text>
<text x="{WIDTH - 16}" y="{middle}" class="inside" text-anchor="end">{100 * (1 - coverage):.0f} %</text>"""


def draw_picture() -> str:
    """Return the picture as SVG."""
    coverages = read_coverages()
    one, several = (1 - coverage for coverage in coverages.values())
    return PICTURE.format(
        title=f"{100 * (1 - several / one):.0f} % fewer images to review, same guarantee",
        guarantee="At most 1 % errors among accepted images, with 99.9 % confidence.",
        measured="ResNet-56 on CIFAR-10, mean of 50 splits.",
        bars="\n".join(draw_bar(*bar, top=TOP + STEP * row) for row, bar in enumerate(coverages.items())),
        **dict(re.findall(r"--(\w+): ([^;]+);", DESIGN.read_text(encoding="utf-8").partition("\n}\n")[0])),
    )


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.parse_args().output.write_text(draw_picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
