"""Every function that takes images accepts all common forms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import Review
from secondlook.views import contact_sheet
from tests.policy_maker import attach

VIEWS = "identity hflip"
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
NAMES = ["dark", "bright"]


def write_files(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(folder / f"{number}.png")
    return [folder / f"{number}.png" for number in range(len(IMAGES))]


def make_tensor(_: Path) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)))


def make_data_set(folder: Path) -> Any:
    return pytest.importorskip("torch.utils.data").TensorDataset(make_tensor(folder))


def make_loader(folder: Path) -> Any:
    return pytest.importorskip("torch.utils.data").DataLoader(make_data_set(folder), batch_size=4, shuffle=True)


def make_column(folder: Path) -> Any:
    return pytest.importorskip("pandas").Series([str(path) for path in write_files(folder)])


def make_hub_data(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    content = {"image": [str(path) for path in write_files(folder)]}
    return datasets.Dataset.from_dict(content, features=datasets.Features({"image": datasets.Image()}))


INPUTS: dict[str, Callable[[Path], Any]] = {
    "array": lambda _: IMAGES,
    "tensor": make_tensor,
    "PIL images": lambda _: [Image.fromarray(image) for image in IMAGES],
    "paths": write_files,
    "bytes": lambda folder: [path.read_bytes() for path in write_files(folder)],
    "data set": make_data_set,
    "loader": make_loader,
    "column": make_column,
    "datasets": make_hub_data,
}


@pytest.fixture
def calls() -> list[int]:
    return []


@pytest.fixture
def model(calls: list[int]) -> Classifier:
    def classify(batch: Array) -> Array:
        calls.append(len(batch))
        brightness = batch[:, :, :4].mean(axis=(1, 2, 3)) / 255
        return np.stack([1 - brightness, brightness], axis=1)

    loaded = load_classifier(classify, name="brightness")
    loaded.class_names = tuple(NAMES)
    return loaded


@pytest.fixture
def policy(model: Classifier) -> sl.Policy:
    return attach(sl.Policy(threshold=0.51, method="mean"), classifier=model, views=tuple(VIEWS.split()))


@pytest.mark.parametrize("kind", INPUTS)
def test_collect_accepts_it_and_resumes(kind: str, tmp_path: Path, model: Classifier, calls: list[int]) -> None:
    expected = sl.collect(model, IMAGES, VIEWS).probabilities
    labels = ["bright", "dark", "dark", "bright", "dark", "bright"]
    calls.clear()
    for _ in range(2):
        data = INPUTS[kind](tmp_path / "files")
        preds = sl.collect(model, data, VIEWS, labels=labels, store=tmp_path / "store")
        np.testing.assert_array_equal(preds.probabilities, expected)
        assert preds.labels.tolist() == [1, 0, 0, 1, 0, 1], "names are those of the classifier"
        assert preds.class_names == ("dark", "bright")
    assert sum(calls) == 12, "the second time nothing is computed"


@pytest.mark.parametrize("kind", INPUTS)
def test_score_selective_classifier_and_apply_views_accept_it(
    kind: str, tmp_path: Path, model: Classifier, policy: sl.Policy
) -> None:
    selective = sl.SelectiveClassifier(model, policy)
    data = INPUTS[kind](tmp_path / "files")
    np.testing.assert_array_equal(sl.apply_views(data, VIEWS), sl.apply_views(IMAGES, VIEWS))
    np.testing.assert_array_equal(selective.predict(data), selective.predict(IMAGES))
    np.testing.assert_array_equal(selective.decide(data).confidence, selective.decide(IMAGES).confidence)
    summary = sl.score(
        policy, data, tmp_path / "scores.csv", classifier=model, review=Review(rejected=tmp_path / "rejected")
    )
    assert summary.images == 6
    assert summary.rejected == len(list((tmp_path / "rejected").rglob("*.png")))


@pytest.mark.parametrize("kind", ["array", "tensor", "PIL images", "paths", "data set"])
def test_create_run_accepts_it(kind: str, tmp_path: Path, model: Classifier) -> None:
    data = INPUTS[kind](tmp_path / "files")
    labels = [NAMES[number % 2] for number in range(6)]
    run = sl.create_run(
        model,
        data,
        out=tmp_path / "run",
        views=VIEWS,
        labels=labels,
        resamples=20,
        execution=sl.Execution(progress=False),
    )
    assert run.predictions.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert run.predictions.class_names == ("dark", "bright")


def test_single_image_of_every_kind(tmp_path: Path, model: Classifier, policy: sl.Policy) -> None:
    selective = sl.SelectiveClassifier(model, policy)
    path = write_files(tmp_path)[0]
    singles = [path, str(path), path.read_bytes(), Image.open(path), IMAGES[0], IMAGES[:1], make_tensor(tmp_path)[0]]
    for image in singles:
        assert selective.decide(image)[0].confidence == selective.decide(IMAGES[:1])[0].confidence
        assert sl.apply_views(image, VIEWS).shape == (1, 2, 8, 8, 3)
        assert contact_sheet(image, VIEWS).tobytes() == contact_sheet(IMAGES[0], VIEWS).tobytes()
    assert sl.score(policy, str(path), tmp_path / "scores.csv", classifier=model).images == 1


def test_images_of_different_sizes_are_named(tmp_path: Path) -> None:
    write_files(tmp_path)
    Image.new("RGB", (4, 3)).save(tmp_path / "6.png")
    with pytest.raises(sl.SecondLookError, match=r"'6.png' .*\[3, 4, 3\].*'0.png'"):
        sl.apply_views(sorted(tmp_path.glob("*.png")), VIEWS)


def test_names_of_labels_are_those_of_the_classifier(model: Classifier) -> None:
    rng = np.random.default_rng(0)
    images = np.concatenate([rng.integers(low, low + 20, (60, 8, 8, 3), dtype=np.uint8) for low in (20, 230)])
    labels = ["dark"] * 60 + ["bright"] * 60
    fitted = sl.SelectiveClassifier(model, views=VIEWS, risk=0.1, delta=0.1).fit(list(images), labels)
    assert fitted.score(images, labels) == 1
    assert fitted.score(images, labels[::-1]) == 0
