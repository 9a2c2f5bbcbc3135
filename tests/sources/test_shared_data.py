"""The real CIFAR-10 test images, where they are at hand."""

from pathlib import Path

import numpy as np
import pytest

from secondlook.sources import open_source

SHARED = Path(__file__).resolve().parents[3] / "shared"
needs_data = pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
needs_jpeg = pytest.mark.skipif(not (SHARED / "cifar10-jpeg").is_dir(), reason="needs the shared CIFAR-10 JPEG data")


@needs_data
def test_the_archive_and_its_split() -> None:
    source = open_source(f"npz:{SHARED}/cifar10/test.npz")
    assert len(source) == 10_000
    assert source.labels is not None
    assert np.bincount(source.labels).tolist() == [1_000] * 10
    experimental = open_source(source, part="experimental")
    evaluation = open_source(source, part="evaluation")
    assert (len(experimental), len(evaluation)) == (1_000, 9_000)
    assert len({source.digest, experimental.digest, evaluation.digest}) == 3


@needs_jpeg
def test_the_folder_of_jpeg_files() -> None:
    source = open_source(f"folder:{SHARED}/cifar10-jpeg/test")
    assert len(source) == 10_000
    assert source.labels is not None
    assert np.bincount(source.labels).tolist() == [1_000] * 10
    images = [image for batch in source.batches(64, stop=128) for image in batch.images]
    assert np.stack(images).shape == (128, 32, 32, 3)
