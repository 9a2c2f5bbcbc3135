"""The files for fd-shifts, read back as the README of fd-shifts describes them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import PredictionsError
from secondlook.estimators import confidence
from secondlook.predictions import Predictions, batching

NAMES = ("raw_logits.npz", "raw_logits_dist.npz", "external_confids.npz")
VIEWS = ("identity", "hflip", "shift:1,0")


class Experiment(NamedTuple):
    """What the analysis of fd-shifts makes of the files."""

    softmax: Array
    passes: Array
    labels: Array
    dataset: Array
    external: Array


def read_experiment(folder: Path) -> Experiment:
    """Read `raw_logits` [N, C + 2], `raw_logits_dist` [N, C, passes] and `external_confids` [N]."""
    arrays = [np.load(folder / name)["arr_0"] for name in NAMES]
    assert [array.dtype for array in arrays] == [np.float64] * 3
    logits, passes, external = arrays
    powers, powers_of_passes = np.exp(logits[:, :-2]), np.exp(passes)
    softmax = powers / powers.sum(axis=1, keepdims=True)
    passes_softmax = powers_of_passes / powers_of_passes.sum(axis=1, keepdims=True)
    return Experiment(softmax, passes_softmax, logits[:, -2], logits[:, -1], external)


def make_predictions(**changes: Any) -> Predictions:
    """Return labeled logits of 40 images, three views and five classes."""
    generator = np.random.default_rng(0)
    given = {"logits": generator.normal(0, 3, (40, 3, 5)).astype(np.float32), "labels": generator.integers(0, 5, 40)}
    return Predictions(**{"views": VIEWS, **given, **changes})


@pytest.mark.parametrize("n_views", [1, 3])
def test_fd_shifts_finds_the_same_confidence_and_correctness(
    n_views: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_BLOCK_BYTES", 8 * 8 * 3 * 5)  # five blocks of eight images
    preds = make_predictions().select(views=list(VIEWS[:n_views]), images=np.arange(40)[::-1])
    blend = confidence(preds, "blend")
    preds.to_fd_shifts(tmp_path / "new" / "folder", blend, dataset=np.arange(40) % 2)
    read = read_experiment(tmp_path / "new" / "folder")
    np.testing.assert_allclose(read.softmax.max(axis=1), confidence(preds, "msr"), rtol=1e-12)  # det_mcp
    np.testing.assert_array_equal(read.softmax.argmax(axis=1) == read.labels, preds.correct())
    assert read.passes.shape == (40, 5, n_views)
    mean = read.passes.mean(axis=2)
    np.testing.assert_allclose(mean.max(axis=1), confidence(preds, "mean", predict_from="views"), rtol=1e-12)  # mcd_mcp
    np.testing.assert_array_equal(mean.argmax(axis=1) == read.labels, preds.correct(predict_from="views"))
    for view in range(n_views):
        np.testing.assert_allclose(read.passes[:, :, view], preds.probabilities[:, view], rtol=1e-5)
    np.testing.assert_array_equal(read.external, blend)
    np.testing.assert_array_equal(read.dataset, np.arange(40) % 2)


def test_stored_predictions_are_exported_and_files_replaced(stored: Predictions, tmp_path: Path) -> None:
    for dataset in (0, 3):
        stored.to_fd_shifts(tmp_path / "folder", [0.5] * stored.n_images, dataset=dataset)
    read = read_experiment(tmp_path / "folder")
    np.testing.assert_array_equal(read.labels, stored.labels)
    np.testing.assert_allclose(read.softmax, stored.probabilities[:, 0], rtol=1e-5, atol=1e-30)
    assert set(read.dataset) == {3}
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == sorted(NAMES)


@pytest.mark.parametrize(
    ("changes", "arguments", "mentioned"),
    [
        ({"labels": None}, {}, "labels"),
        ({"logits": None, "probabilities": np.full((40, 3, 5), 0.2)}, {}, "logits"),
        ({"logits": None, "members": [make_predictions()] * 2}, {}, "members"),
        ({}, {"confidence": np.zeros(39)}, "[39]"),
        ({}, {"confidence": [np.nan] * 40}, "confidence"),
        ({}, {"confidence": ["high"] * 40}, "confidence"),
        ({}, {"dataset": [0, 1]}, "[2]"),
        ({}, {"dataset": -1}, "dataset"),
        ({}, {"dataset": 0.5}, "float64"),
    ],
)
def test_what_fd_shifts_cannot_read_is_rejected_before_anything_is_written(
    changes: dict[str, Any], arguments: dict[str, Any], mentioned: str, tmp_path: Path
) -> None:
    with pytest.raises(PredictionsError) as raised:
        make_predictions(**changes).to_fd_shifts(tmp_path / "folder", **{"confidence": np.zeros(40), **arguments})
    assert mentioned in str(raised.value)
    assert not (tmp_path / "folder").exists()


def test_a_failure_keeps_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preds = make_predictions()
    preds.to_fd_shifts(tmp_path, np.zeros(40))
    before = [(tmp_path / name).read_bytes() for name in NAMES]

    def fail(*_: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(Predictions, "_read", fail)
    with pytest.raises(OSError, match="broken"):
        preds.to_fd_shifts(tmp_path, np.ones(40))
    assert [(tmp_path / name).read_bytes() for name in NAMES] == before
    assert len(list(tmp_path.iterdir())) == 3
