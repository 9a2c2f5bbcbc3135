"""`reproduce` on tiny official files with stand-ins: numbers, files, missing inputs, and inference only once."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import secondlook as sl
from reproduction import Reproduction, ReproductionError, reproduce
from tests.reproduction.conftest import RecordingNetwork, make_networks, make_stand_ins, write_data

Run = Callable[..., Reproduction]
Networks = dict[str, RecordingNetwork]
StandIns = dict[str, sl.Classifier]
FILES = {"results.csv", "tables.md", "tables.tex", "page.html", "circumstances.json"}


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def table2(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduction, Path]:
    """Table 2 with another seed, and the folder of its files."""
    out, classifiers = tmp_path_factory.mktemp("out"), make_stand_ins(make_networks())
    return reproduce("table2", data_root, out, classifiers=classifiers, seed=3), out / "table2"


@pytest.fixture
def run(data_root: Path, stand_ins: StandIns, tmp_path: Path) -> Run:
    """Return a function that reproduces an experiment into `out`."""

    def reproduce_into_folder(name: str, out: str = "out", **options: Any) -> Reproduction:
        return reproduce(name, data_root, tmp_path / out, **{"classifiers": stand_ins, **options})

    return reproduce_into_folder


def test_table2_runs_on_official_files_as_a_plain_computation(
    table2: tuple[Reproduction, Path], data_root: Path, stand_ins: StandIns
) -> None:
    done, out = table2
    assert done.has_run
    assert not done.missing
    text = str(done)
    for expected in ("CIFAR-10 VGG-8", "CIFAR-100 VGG-8", "SVHN VGG-8", "MSR(digits)", "0.938", "joint risk"):
        assert expected in text
    assert {path.name for path in out.iterdir()} >= FILES
    rows = csv_rows(out / "results.csv")
    assert [row["method"] for row in rows] == ["MSR(x)", "MSR(D)", "BS(D)"] * 3 + ["MSR(digits)"]
    assert {row["images"] for row in rows} == {"54", "52"}  # a tenth and an eighth of 60 are experimental
    assert rows[1]["published"] == "0.941000"
    assert float(rows[1]["difference"]) == pytest.approx(float(rows[1]["value"]) - 0.941, abs=2e-6)
    value = float(rows[1]["value"])
    source = sl.open_source(f"cifar10:{data_root}", subset="evaluation", count=6, seed=3)
    images = np.stack([source.read(index) for index in range(len(source))])
    views = sl.ViewSet("cifar10-released")
    outputs = np.stack([stand_ins["cifar10-vgg8"](batch) for batch in sl.apply_views(images, views).swapaxes(0, 1)])
    predicted = outputs[0].argmax(axis=1)
    assert source.labels is not None
    confidence = outputs.astype(float).mean(axis=0)[np.arange(len(images)), predicted]
    assert value == pytest.approx(roc_auc_score(predicted == source.labels, confidence), abs=1e-6)


def test_empty_data_root_yields_exact_instructions_once(tmp_path: Path, stand_ins: StandIns) -> None:
    (tmp_path / "data").mkdir()
    done = reproduce("table2", tmp_path / "data", tmp_path / "out")
    assert not done.has_run
    text = str(done)
    for expected in (
        "data set CIFAR-10",
        str(tmp_path / "data" / "cifar-10-batches-py" / "test_batch"),
        "cifar-10-python.tar.gz",
        str(tmp_path / "data" / "svhn" / "test_32x32.mat"),
        "classifier cifar100-vgg8",
        "[cifar100-vgg8]",
        'spec = "onnx:FILE.onnx"',
    ):
        assert expected in text
    assert not (tmp_path / "out").exists()

    text = str(reproduce("all", tmp_path / "data", tmp_path / "out", classifiers=stand_ins))
    assert text.count("data set SVHN") == 1
    assert text.count("ILSVRC2012_img_val.tar") == 1


def test_available_columns_run_when_others_are_missing_or_damaged(tmp_path: Path, stand_ins: StandIns) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write_data(root, "cifar10")
    chosen = {"cifar10-vgg8": stand_ins["cifar10-vgg8"]}
    done = reproduce("table2", root, tmp_path / "out", classifiers=chosen)
    assert {row["column"] for row in csv_rows(tmp_path / "out" / "table2" / "results.csv")} == {"CIFAR-10 VGG-8"}
    assert len(done.missing) == 4
    assert "data set SVHN" in str(done)
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(b"cut short")
    damaged = reproduce("table2", root, tmp_path / "damaged")
    item = next(item for item in damaged.missing if item.name == "data set CIFAR-10")
    assert "test_batch" in item.reason


def test_no_image_is_classified_twice(run: Run, networks: Networks, tmp_path: Path) -> None:
    names = ("table2", "supplement", "figure-rc", "table1", "figure-aorc")
    for name in names:
        run(name, store=tmp_path / "store", limit=12)
    images = [image.tobytes() for batch in networks["svhn-vgg8"].batches for image in batch]
    assert len(images) == len(set(images)) > 0
    for network in networks.values():
        network.batches.clear()
    for name in names:
        run(name, "again", store=tmp_path / "store", limit=12)
    assert not any(network.batches for network in networks.values())


def test_each_view_of_an_image_is_new_once(run: Run, stand_ins: StandIns, networks: Networks, tmp_path: Path) -> None:
    chosen = {"cifar100-vgg8": stand_ins["cifar100-vgg8"]}
    for name in ("table2", "table1", "supplement"):
        run(name, classifiers=chosen, store=tmp_path / "store", progress=False)
    views = set(sl.ViewSet("cifar100-released").texts)
    single = {"hflip", "shift:0,-5", "shift:0,5", "hflip+shift:0,5", "rotate:-3", "vflip", "channels:gbr", "identity"}
    # 54 evaluation and 6 experimental images, each with their own views.
    assert networks["cifar100-vgg8"].n_images == 54 * len(views) + 6 * len(single)


def test_rerun_from_the_store_writes_the_same_csv_and_a_limit_reduces_images(run: Run, tmp_path: Path) -> None:
    for out in ("first", "second"):
        run("table5", out, store=tmp_path / "store")
    texts = [(tmp_path / out / "table5" / "results.csv").read_bytes() for out in ("first", "second")]
    assert texts[0] == texts[1]
    run("table2", limit=20)
    assert {row["images"] for row in csv_rows(tmp_path / "out" / "table2" / "results.csv")} == {"20"}


def test_indices_files_define_experimental_images(
    run: Run, data_root: Path, networks: Networks, tmp_path: Path
) -> None:
    (tmp_path / "indices").mkdir()
    done = run("table2", indices=tmp_path / "indices")
    assert not done.has_run
    assert "cifar10.npy" in done.missing[0].reason
    for key in ("cifar10", "cifar100", "svhn"):
        (tmp_path / "indices" / f"{key}.txt").write_text("0 1 2 59")
    run("table2", indices=tmp_path / "indices")
    assert {row["images"] for row in csv_rows(tmp_path / "out" / "table2" / "results.csv")} == {"56"}
    whole = sl.open_source(f"cifar10:{data_root}")
    first_batch = networks["cifar10-vgg8"].batches[0]
    assert np.array_equal(first_batch[0], whole.read(3))
    assert np.array_equal(first_batch[55], whole.read(58))  # the other views of these images may follow


def test_circumstances_have_no_paths_and_the_page_no_links(table2: tuple[Reproduction, Path], data_root: Path) -> None:
    text = (table2[1] / "circumstances.json").read_text()
    facts = json.loads(text)
    assert facts["seed"] == 3
    assert {"date", "commit", "machine", "versions", "digests"} <= set(facts)
    assert facts["predictions"]["svhn-vgg8 on svhn, evaluation"]["numpy"] == np.__version__
    assert str(table2[1].parent) not in text
    assert str(data_root) not in text
    page = (table2[1] / "page.html").read_text()
    assert 'src="data:image/png;base64,' in page
    assert 'src="http' not in page
    assert "<link" not in page
    assert "artifacts of these labels" in page


def test_wrong_folders_and_classifiers_fail(run: Run, stand_ins: StandIns, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReproductionError, match=re.escape(str(tmp_path / "nowhere"))):
        reproduce("table2", tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ReproductionError, match=r"'cifar10-vg8'.*'cifar10-vgg8'"):
        run("table2", classifiers={"cifar10-vg8": stand_ins["cifar10-vgg8"]})
    with pytest.raises(ReproductionError, match=re.escape(str(tmp_path / "file"))):
        run("table2", "file", store=tmp_path / "store")
