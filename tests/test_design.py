"""The design of all pages: readable colors, and one place for values."""

import re
from itertools import combinations
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.report.plots import COLORS, CORRECT, WRONG

ROOT = Path(__file__).parent.parent
TEMPLATES = ROOT / "src" / "secondlook" / "report" / "templates"
STYLES = [*TEMPLATES.glob("*.css"), *(ROOT / "src" / "secondlook" / "serving" / "pages" / "static").glob("*.css")]
DESIGN = TEMPLATES / "design.css"
LITERAL_COLOR = re.compile(r"#[0-9a-f]{3,8}\b|\b(?:rgb|hsl)a?\(", re.IGNORECASE)
SCHEMES = {"light": 0, "dark": 1}
# From linear RGB to the responses of cones, and from their cube roots to Oklab (Ottosson 2020).
CONES = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.21190350, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.62997870],
]
LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.97799850, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]
# Simulated dichromacy in linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
DICHROMACIES = {
    "none": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def read_values(text: str) -> dict[str, str]:
    """Return the custom properties of the first rule for :root."""
    root = text.partition(":root {")[2].partition("}")[0]
    return dict(re.findall(r"--([\w-]+): ([^;]+);", root))


VALUES = read_values(DESIGN.read_text(encoding="utf-8"))


def find_colors(name: str) -> list[str]:
    """Return a color of the light and of the dark scheme."""
    return re.findall(r"#[0-9a-f]{6}", VALUES[name])


def read_color(name: str, scheme: str) -> Array:
    """Return the linear RGB values of a color. float64 [3]"""
    text = find_colors(name)[SCHEMES[scheme]]
    color = np.array([int(text[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)


def compute_contrast(name: str, other: str, scheme: str) -> float:
    """Return the contrast ratio of two colors, as defined by WCAG 2."""
    low, high = sorted(float(read_color(one, scheme) @ [0.2126, 0.7152, 0.0722]) for one in (name, other))
    return (high + 0.05) / (low + 0.05)


def to_oklab(linear: Array) -> Array:
    """Return a color of linear RGB in Oklab, where distances are perceived differences. [3] -> [3]"""
    found: Array = np.array(LAB) @ np.cbrt(np.array(CONES) @ linear)
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("background", ["paper", "wash"])
def test_text_has_the_contrast_of_wcag_aa(background: str, scheme: str) -> None:
    for name in ("ink", "quiet", "accent", "good", "warn", "bad"):
        assert compute_contrast(name, background, scheme) >= 4.5, name
        assert compute_contrast("paper", name, scheme) >= 4.5, f"text on {name}"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("background", ["paper", "wash"])
def test_curves_and_bars_have_the_contrast_of_wcag_aa(background: str, scheme: str) -> None:
    for name in ("correct", "wrong", *(f"m{number}" for number in range(8))):
        assert compute_contrast(name, background, scheme) >= 3, name


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dichromacy", DICHROMACIES)
def test_color_blind_people_can_tell_plots_apart(dichromacy: str, scheme: str) -> None:
    pairs = [*combinations([f"m{number}" for number in range(4)], 2), ("correct", "wrong")]
    for one, other in pairs:
        seen = [
            to_oklab(np.clip(np.array(DICHROMACIES[dichromacy]) @ read_color(name, scheme), 0, 1))
            for name in (one, other)
        ]
        assert np.linalg.norm(seen[0] - seen[1]) > 0.1, (one, other)  # about 0.02 is just noticeable


def test_plots_in_files_have_the_colors_of_the_page() -> None:
    names = [*(f"m{number}" for number in range(len(COLORS))), "correct", "wrong"]
    assert [*COLORS, CORRECT, WRONG] == [find_colors(name)[0] for name in names]


def test_colors_are_in_one_place() -> None:
    for path in STYLES:
        found = LITERAL_COLOR.findall(path.read_text(encoding="utf-8"))
        assert path == DESIGN or found == [], path


def test_pages_elsewhere_use_the_same_values() -> None:
    for path in (ROOT / "examples/browser/style.css", ROOT / "docs/stylesheets/extra.css"):
        text = path.read_text(encoding="utf-8")
        values = read_values(text)
        assert values, path
        assert values == {name: VALUES.get(name) for name in values}, path
        assert LITERAL_COLOR.findall(text.partition("}")[2]) == [], path


def test_the_logo_is_the_same_everywhere() -> None:
    logo = (TEMPLATES / "logo.svg").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "images" / "logo.svg").read_text(encoding="utf-8") == logo
    example = (ROOT / "examples" / "browser" / "index.html").read_text(encoding="utf-8")
    assert example.count(f"data:image/svg+xml,{quote(logo)}") == example.count("data:image") == 2
