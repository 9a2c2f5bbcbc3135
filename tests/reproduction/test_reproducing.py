"""`reproduce` on tiny official files with stand-ins: numbers, files, what is missing, and inference once."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from reproduction import reproduce
from reproduction.bench import Bench, Used
from secondlook.classifiers import Classifier
from secondlook.errors import ExperimentError
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

FILES = {"results.csv", "tables.md", "tables.tex", "page.html", "circumstances.json"}


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_table2_runs_on_official_files(data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path) -> None:
    done = reproduce("table2", data_root, tmp_path / "out", classifiers=stand_ins)
    assert done.has_run
    assert not done.missing
    text = str(done)
    for expected in ("CIFAR-10 VGG-8", "CIFAR-100 VGG-8", "SVHN VGG-8", "MSR(digits)", "published 0.938", "joint risk"):
        assert expected in text
    assert {path.name for path in (tmp_path / "out" / "table2").iterdir()} >= FILES
    rows = csv_rows(tmp_path / "out" / "table2" / "results.csv")
    assert [row["method"] for row in rows] == ["MSR(x)", "MSR(D)", "BS(D)"] * 3 + ["MSR(digits)"]
    assert {row["images"] for row in rows} == {"54", "52"}  # a tenth, an eighth of 60 are experimental
    assert rows[1]["published"] == "0.941000"
    assert float(rows[1]["difference"]) == pytest.approx(float(rows[1]["value"]) - 0.941, abs=2e-6)


def test_the_command_prints_for_machines_what_it_writes(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import numpy as np\n"
        "def by_color(images):\n"
        "    answers = images.mean(axis=(1, 2)) @ np.random.default_rng(0).normal(size=(3, 10))\n"
        "    powers = np.exp(answers - answers.max(axis=1, keepdims=True))\n"
        "    return powers / powers.sum(axis=1, keepdims=True)\n"
    )
    plan = 'spec = "function:nets:by_color"\noutput = "probabilities"\n'
    (tmp_path / "nets.toml").write_text(f'[cifar10-vgg8]\nname = "colors"\n{plan}[svhn-vgg8]\n{plan}')
    program = str(Path(sys.executable).with_name("secondlook"))
    line = [program, "reproduce", "table2", "--data-root", str(data_root), "--classifiers", "nets.toml", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    written = csv_rows(tmp_path / printed["out"] / "table2" / "results.csv")
    assert [row["method"] for row in printed["experiments"]["table2"]] == ["MSR(x)", "MSR(D)", "BS(D)"]
    for one, other in zip(printed["experiments"]["table2"], written, strict=True):
        assert list(one) == list(other)
        assert one["difference"] == pytest.approx(float(other["difference"]), abs=1e-6)
    gaps = {gap["what"].split()[1]: gap for gap in printed["missing"]}
    assert set(gaps) == {"cifar100-vgg8", "svhn-vgg8"}
    assert "must be named" in gaps["cifar100-vgg8"]["why"]
    assert "it has no name" in gaps["svhn-vgg8"]["why"]
    assert "below [svhn-vgg8]" in gaps["svhn-vgg8"]["steps"][0]


def test_the_numbers_are_those_of_a_plain_computation(
    data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path
) -> None:
    reproduce("table2", data_root, tmp_path / "out", classifiers=stand_ins)
    value = float(csv_rows(tmp_path / "out" / "table2" / "results.csv")[1]["value"])
    source = open_source(f"cifar10:{data_root}", part="evaluation", count=6, seed=0)
    images = np.stack([source.read(index) for index in range(len(source))])
    views = ViewSet("cifar10-released")
    answers = np.stack([stand_ins["cifar10-vgg8"](batch) for batch in apply_views(images, views).swapaxes(0, 1)])
    predicted = answers[0].argmax(axis=1)
    assert source.labels is not None
    confidence = answers.astype(float).mean(axis=0)[np.arange(len(images)), predicted]
    assert value == pytest.approx(roc_auc_score(predicted == source.labels, confidence), abs=1e-6)


def test_an_empty_folder_gets_exact_instructions(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = reproduce("table2", tmp_path / "data", tmp_path / "out")
    assert not done.has_run
    text = str(done)
    for expected in (
        "data set CIFAR-10: 2 file(s) are not there",
        f"put {tmp_path / 'data' / 'cifar-10-batches-py' / 'test_batch'} (31 MB): from cifar-10-python.tar.gz",
        f"put {tmp_path / 'data' / 'svhn' / 'test_32x32.mat'} (64 MB)",
        "classifier cifar100-vgg8 (VGG-8 for CIFAR-100)",
        "[cifar100-vgg8]",
        'spec = "onnx:FILE.onnx"',
    ):
        assert expected in text
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_said_once_for_all_experiments(tmp_path: Path, stand_ins: dict[str, Classifier]) -> None:
    (tmp_path / "data").mkdir()
    text = str(reproduce("all", tmp_path / "data", tmp_path / "out", classifiers=stand_ins))
    assert text.count("data set SVHN") == 1
    assert text.count("ILSVRC2012_img_val.tar") == 1


def test_the_rest_still_runs(
    tmp_path: Path, write_data: Callable[[Path, str], None], stand_ins: dict[str, Classifier]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write_data(root, "cifar10")
    given = {"cifar10-vgg8": stand_ins["cifar10-vgg8"]}
    done = reproduce("table2", root, tmp_path / "out", classifiers=given)
    assert {row["column"] for row in csv_rows(tmp_path / "out" / "table2" / "results.csv")} == {"CIFAR-10 VGG-8"}
    assert len(done.missing) == 4
    assert "data set SVHN" in str(done)


def test_a_damaged_file_is_named(tmp_path: Path, write_data: Callable[[Path, str], None]) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write_data(root, "cifar10")
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(b"cut short")
    assert "test_batch' cannot be read" in str(reproduce("table2", root, tmp_path / "out"))


def test_no_image_is_shown_twice_whatever_number_of_experiments_uses_it(
    data_root: Path, stand_ins: dict[str, Classifier], networks: dict[str, Any], tmp_path: Path
) -> None:
    names = ("table2", "supplement", "figure-rc", "table1", "figure-aorc")
    for name in names:
        reproduce(name, data_root, tmp_path / "out", classifiers=stand_ins, store=tmp_path / "store", limit=12)
    shown = [image.tobytes() for batch in networks["svhn-vgg8"].shown for image in batch]
    assert len(shown) == len(set(shown)) > 0
    for network in networks.values():
        network.shown.clear()
    for name in names:
        reproduce(name, data_root, tmp_path / "again", classifiers=stand_ins, store=tmp_path / "store", limit=12)
    assert not any(network.shown for network in networks.values())


def test_each_view_of_each_image_is_classified_once(
    data_root: Path, stand_ins: dict[str, Classifier], networks: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    chosen = {"cifar100-vgg8": stand_ins["cifar100-vgg8"]}
    for name in ("table2", "table1", "supplement"):
        reproduce(name, data_root, tmp_path / "out", classifiers=chosen, store=store, progress=False)
    views = set(ViewSet("cifar100-released").texts)
    single = {"hflip", "shift:0,-5", "shift:0,5", "hflip+shift:0,5", "rotate:-3", "vflip", "channels:gbr", "identity"}
    # 54 images for evaluation and 6 experimental ones, each with its own views.
    assert networks["cifar100-vgg8"].images_shown == 54 * len(views) + 6 * len(single)


def test_a_second_run_from_the_store_gives_the_same_csv(
    data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path
) -> None:
    texts = []
    for out in ("first", "second"):
        reproduce("table5", data_root, tmp_path / out, classifiers=stand_ins, store=tmp_path / "store")
        texts.append((tmp_path / out / "table5" / "results.csv").read_bytes())
    assert texts[0] == texts[1]


def test_a_file_of_indices_is_the_experimental_part(
    data_root: Path, stand_ins: dict[str, Classifier], networks: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "indices").mkdir()
    for key in ("cifar10", "cifar100", "svhn"):
        (tmp_path / "indices" / f"{key}.txt").write_text("0 1 2 59")
    reproduce("table2", data_root, tmp_path / "out", classifiers=stand_ins, indices=tmp_path / "indices")
    rows = csv_rows(tmp_path / "out" / "table2" / "results.csv")
    assert {row["images"] for row in rows} == {"56"}
    whole = open_source(f"cifar10:{data_root}")
    first_batch = networks["cifar10-vgg8"].shown[0]
    assert np.array_equal(first_batch[0], whole.read(3))
    assert np.array_equal(first_batch[-1], whole.read(58))


def test_a_folder_of_indices_that_lacks_a_file_is_named(
    data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path
) -> None:
    (tmp_path / "indices").mkdir()
    done = reproduce("table2", data_root, tmp_path / "out", classifiers=stand_ins, indices=tmp_path / "indices")
    assert "no cifar10.txt or cifar10.npy" in str(done)


def test_a_limit_takes_fewer_images(data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path) -> None:
    reproduce("table2", data_root, tmp_path / "out", classifiers=stand_ins, limit=20)
    assert {row["images"] for row in csv_rows(tmp_path / "out" / "table2" / "results.csv")} == {"20"}


def test_the_circumstances_stand_beside_the_numbers(
    data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path
) -> None:
    reproduce("table2", data_root, tmp_path / "out", classifiers=stand_ins, seed=3)
    text = (tmp_path / "out" / "table2" / "circumstances.json").read_text()
    facts = json.loads(text)
    assert facts["seed"] == 3
    assert {"date", "commit", "machine", "versions", "digests"} <= set(facts)
    assert facts["predictions"]["svhn-vgg8 on svhn, evaluation"]["numpy"] == np.__version__
    assert str(tmp_path) not in text


def test_each_experiment_is_charged_with_what_it_used_itself(
    data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path
) -> None:
    bench = Bench(data_root, tmp_path / "store", plans=stand_ins, progress=False)
    first, second = bench.classifier("cifar10-vgg8"), bench.source("svhn", "evaluation")
    assert bench.take_used().digests == {"cifar10-vgg8": first.digest, "svhn, evaluation": second.digest}
    assert bench.take_used() == Used()
    bench.source("svhn", "evaluation")  # opened long since, and used again
    assert bench.take_used().digests == {"svhn, evaluation": second.digest}


def test_the_page_loads_nothing_from_elsewhere(
    data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path
) -> None:
    reproduce("table2", data_root, tmp_path / "out", classifiers=stand_ins)
    page = (tmp_path / "out" / "table2" / "page.html").read_text()
    assert 'src="data:image/png;base64,' in page
    assert 'src="http' not in page
    assert "<link" not in page
    assert "artefacts of these labels" in page


def test_a_folder_that_is_not_there_and_a_key_that_no_experiment_has_are_errors(
    tmp_path: Path, stand_ins: dict[str, Classifier]
) -> None:
    with pytest.raises(ExperimentError, match=r"data_root is .*nothing"):
        reproduce("table2", tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ExperimentError, match=r"'cifar10-vg8'.*Did you mean 'cifar10-vgg8'"):
        reproduce("table2", tmp_path, tmp_path / "out", classifiers={"cifar10-vg8": stand_ins["cifar10-vgg8"]})


def test_an_out_folder_that_cannot_be_written_is_an_error(
    data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExperimentError, match="cannot be written"):
        reproduce("table2", data_root, tmp_path / "file", classifiers=stand_ins, store=tmp_path / "store")
