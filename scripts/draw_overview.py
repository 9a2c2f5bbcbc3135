"""Draw the picture of the README: two digits of the demo, what the classifier says of their views, and the decisions.

Run: python scripts/draw_overview.py DEMO [--output FILE]

DEMO is the output folder of `secondlook demo`. The upper digit is the most confident accepted one. The lower one is the
rejected error with the highest confidence before the second look, among those whose views change the predicted class.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

import secondlook as sl
from secondlook.arrays import Array
from secondlook.cli.demo import digit_images

OUTPUT = Path(__file__).parent.parent / "docs" / "images" / "overview.png"
SHOWN_VIEWS = 5
GREEN, ORANGE, GRAY = "#1a7f4b", "#c2570c", "#667085"


def choose_digits(preds: sl.Predictions, accept: Array) -> tuple[int, int]:
    """Return the index of the accepted digit and of the rejected one. bool [N]"""
    alone = preds.probabilities[:, 0].max(axis=1)
    classes = preds.probabilities.argmax(axis=2)
    rejected = np.flatnonzero(~accept & ~preds.correct() & (classes != classes[:, :1]).any(axis=1))
    return int(np.argmax(np.where(accept, alone, 0))), int(rejected[np.argmax(alone[rejected])])


def find_labels(images: Array) -> Array:
    """Return the true digits of the demo's new images. uint8 [N, 16, 16, 1] -> int64 [N]"""
    known = {image.tobytes(): label for image, label in zip(*digit_images(), strict=True)}
    return np.array([known[image.tobytes()] for image in images])


def choose_views(probabilities: Array) -> list[int]:
    """Return the views that differ most from the image itself, in their order. [V, C]"""
    distance = np.abs(probabilities - probabilities[0]).sum(axis=1)
    return sorted(np.argsort(-distance)[:SHOWN_VIEWS].tolist())


def draw_view(axes: Axes, image: Array, probabilities: Array, expected: int) -> None:
    """Draw a view with the predicted class and its probability below. uint8 [H, W, 1], [C]"""
    predicted = int(probabilities.argmax())
    axes.imshow(image[..., 0], cmap="gray", interpolation="bilinear")
    axes.set_axis_off()
    text = f'"{predicted}"  {100 * probabilities[predicted]:.0f} %'
    color = "black" if predicted == expected else ORANGE
    axes.set_title(text, y=-0.3, fontsize=12, color=color, fontweight="bold" if predicted != expected else "normal")


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    policy = sl.load_policy(arguments.demo / "policy.json")
    images = np.load(arguments.demo / "new.npz")["images"]
    model = sl.load_classifier(f"onnx:{Path(sl.__file__).parent / 'cli' / 'demo_data' / 'digits.onnx'}")
    preds = sl.collect(model, images, policy.views, labels=find_labels(images))
    accept = policy.accept(preds)
    figure = plt.figure(figsize=(11, 4.4))
    grid = figure.add_gridspec(2, SHOWN_VIEWS + 2, width_ratios=[1.25, *[1] * SHOWN_VIEWS, 1.7], hspace=0.55, top=0.83)
    for row, place in enumerate(choose_digits(preds, accept)):
        probabilities = preds.probabilities[place]
        expected = int(probabilities[0].argmax())
        views = [0, *choose_views(probabilities)]
        looks = sl.apply_views(images[place : place + 1], policy.views)[0]
        for column, view in enumerate(views):
            draw_view(figure.add_subplot(grid[row, column]), looks[view], probabilities[view], expected)
        verdict = figure.add_subplot(grid[row, -1])
        verdict.set_axis_off()
        title, reason, color = (
            (f'accept "{expected}"', "all looks agree", GREEN)
            if accept[place]
            else ("ask a person", f'the looks disagree\n(it is a "{preds.labels[place]}")', ORANGE)
        )
        verdict.text(0.62, 0.6, title, ha="center", va="center", fontsize=15, fontweight="bold", color=color)
        verdict.text(0.62, 0.28, reason, ha="center", va="center", fontsize=11, color=GRAY)
    for x, text in (
        (0.19, "the image"),
        (0.5, "a second look: the image, slightly changed"),
        (0.86, "the decision"),
    ):
        figure.text(x, 0.93, text, ha="center", fontsize=13, color=GRAY)
    figure.savefig(arguments.output, dpi=120, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main()
