"""`secondlook score`, as a user runs it, with the demo's network on real digits."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

import secondlook as sl
from secondlook.classifiers import load_classifier
from secondlook.cli.demo_digits import digit_images, seen_and_unseen
from secondlook.selective import Policy, certify, threshold_for

Command = Callable[..., "subprocess.CompletedProcess[str]"]

NETWORK = Path(sl.__file__).parent / "cli" / "demo_data" / "digits.onnx"
MODEL = f"onnx:{NETWORK}?output=logits&gray=luminance"
VIEWS = sl.ViewSet("identity shift:1,0 shift:0,1 rotate:5")
NEW = 120


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A policy from 600 digits that the network never saw, and that are not scored."""
    from secondlook.predictions import collect

    images, labels = digit_images()
    places = seen_and_unseen()[1][NEW : NEW + 600]
    classifier = load_classifier(MODEL)
    preds = collect(classifier, images[places], VIEWS, labels=labels[places])
    rule = certify(preds, "mean", risk=0.05, delta=0.1)
    assert rule.certified
    return Policy.of(rule, classifier=classifier, views=VIEWS.texts)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, policy: Policy) -> Path:
    """The folder of the user: the policy, and new digits as files."""
    policy.save(tmp_path / "policy.json")
    (tmp_path / "new").mkdir()
    images, _ = digit_images()
    for number in seen_and_unseen()[1][:NEW]:
        Image.fromarray(images[number, :, :, 0]).save(tmp_path / "new" / f"{number:04d}.png")
    return tmp_path


GIVEN = ("--policy", "policy.json", "--data", "folder:new/")


def test_score_reject_and_export(secondlook: Command, place: Path) -> None:
    done = secondlook(
        *("score", *GIVEN, "--out", "scores.parquet", "--rejected", "rejected/", "--per-view"),
        *("--export", "label-studio:tasks.json", "--export", "fiftyone:labels.json"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{NEW} images: ")
    assert "guarantee: at most 5 % errors among the accepted, with certainty 90 %" in done.stdout
    assert "Scores in scores.parquet\nRejected images in rejected\nFor review: label-studio:tasks.json" in done.stdout
    rows = pq.read_table(place / "scores.parquet").to_pylist()
    rejected = [row for row in rows if not row["accept"]]
    assert 0 < len(rejected) < NEW / 2
    assert len(rows) == NEW
    assert len(rows[0]["view_labels"]) == len(VIEWS)
    assert len(list((place / "rejected").rglob("*.png"))) == len(rejected)
    assert len(json.loads((place / "tasks.json").read_text())) == len(rejected)
    assert len(json.loads((place / "labels.json").read_text())["labels"]) == len(rejected)
    assert not (place / "scores.parquet.parts").exists()


def test_for_machines_quiet_and_from_a_file(secondlook: Command, place: Path) -> None:
    told = json.loads(secondlook("score", *GIVEN, "--out", "a.csv", "--json").stdout)
    assert told["images"] == told["accepted"] + told["rejected"] == NEW
    assert told["guarantee"].startswith("at most 5 %")
    quiet = secondlook("score", *GIVEN, "--out", "b.csv", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert (place / "a.csv").read_bytes() == (place / "b.csv").read_bytes()
    (place / "score.toml").write_text('[score]\npolicy = "policy.json"\ndata = "folder:new/"\nout = "c.jsonl"\n')
    assert secondlook("score", "--config", "score.toml").returncode == 0
    with (place / "a.csv").open(newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert [json.loads(line)["id"] for line in (place / "c.jsonl").read_text().splitlines()] == ids


def test_skipped_images_are_listed(secondlook: Command, place: Path) -> None:
    (place / "new" / "broken.png").write_bytes(b"no picture")
    done = secondlook("score", *GIVEN, "--out", "scores.csv")
    assert done.returncode == 2
    assert "broken.png" in done.stderr
    done = secondlook("score", *GIVEN, "--out", "scores.csv", "--on-error", "skip")
    assert done.returncode == 0, done.stderr
    assert ", 1 skipped\n" in done.stdout
    assert "\nskipped: broken.png: " in done.stdout
    again = secondlook("score", "--policy", "policy.json", "--data", "folder:new/?on_error=skip", "--out", "b.csv")
    assert again.returncode == 0, again.stderr
    assert (place / "scores.csv").read_bytes() == (place / "b.csv").read_bytes()


def test_another_place_of_the_model(secondlook: Command, place: Path) -> None:
    (place / "moved.onnx").write_bytes(NETWORK.read_bytes())
    policy = json.loads((place / "policy.json").read_text())
    policy["classifier"]["name"] = "onnx:gone.onnx?output=logits"
    (place / "policy.json").write_text(json.dumps(policy))
    done = secondlook("score", *GIVEN, "--out", "scores.csv")
    assert done.returncode == 2
    assert "the classifier of the policy cannot be loaded" in done.stderr
    assert "give it yourself, as --model" in done.stderr
    model = "onnx:moved.onnx?output=logits&gray=luminance"
    done = secondlook("score", *GIVEN, "--out", "scores.csv", "--model", model)
    assert done.returncode == 0, done.stderr


def test_a_model_that_moved_has_the_options_of_the_policy(secondlook: Command, place: Path) -> None:
    from secondlook.predictions import collect

    text = f"{MODEL}&mean=0.1&std=0.5"
    images, labels = digit_images()
    places = seen_and_unseen()[1][NEW : NEW + 300]
    classifier = load_classifier(text)
    rule = threshold_for(collect(classifier, images[places], VIEWS, labels=labels[places]), coverage=0.8)
    Policy.of(rule, classifier=classifier, views=VIEWS.texts).save(place / "policy.json")
    assert secondlook("score", *GIVEN, "--out", "first.csv").returncode == 0
    (place / "moved.onnx").write_bytes(NETWORK.read_bytes())
    done = secondlook("score", *GIVEN, "--out", "scores.csv", "--model", "onnx:moved.onnx")
    assert done.returncode == 0, done.stderr
    assert (place / "scores.csv").read_bytes() == (place / "first.csv").read_bytes()
    done = secondlook("score", *GIVEN, "--out", "scores.csv", "--model", "onnx:moved.onnx?gray=luminance&mean=0.2")
    assert done.returncode == 2
    assert "preprocessing mean=" in done.stderr, "options that are given are taken as they are"


@pytest.mark.parametrize(
    ("option", "partner"),
    [("--link", "--rejected"), ("--export-all", "--export"), ("--image-prefix=https://a.b/", "--export")],
)
def test_an_option_without_its_partner_is_refused(secondlook: Command, place: Path, option: str, partner: str) -> None:
    done = secondlook("score", *GIVEN, "--out", "scores.csv", option)
    assert done.returncode == 2
    assert f"{option.partition('=')[0]} does nothing without {partner};" in done.stderr
    assert not (place / "scores.csv").exists()


def test_another_model_must_be_insisted_on(secondlook: Command, place: Path) -> None:
    policy = json.loads((place / "policy.json").read_text())
    policy["classifier"]["digest"] = "0" * 64
    (place / "policy.json").write_text(json.dumps(policy))
    done = secondlook("score", *GIVEN, "--out", "scores.csv")
    assert done.returncode == 2
    assert "(digest 000000000000), got" in done.stderr
    done = secondlook("score", *GIVEN, "--out", "scores.csv", "--allow-mismatch")
    assert done.returncode == 0, done.stderr
    assert "guarantee: none, since the policy is for classifier" in done.stdout


def test_harmful_views_are_told_of(secondlook: Command, place: Path, policy: Policy) -> None:
    views = ("identity", "shift:1,0", "shift:12,-12")
    policy.model_copy(update={"views": views}).save(place / "policy.json")
    done = secondlook("score", *GIVEN, "--out", "scores.csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("warning: view 'shift:12,-12' is likely to make the confidence worse")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"--policy": "none.json"}, "the policy 'none.json' cannot be read: No such file or directory"),
        ({"--policy": "damaged.json"}, "the policy 'damaged.json' cannot be used, the whole file: Invalid JSON"),
        ({"--data": "folder:none/"}, "'none' is no folder"),
        ({"--data": "foldr:new/"}, "Did you mean 'folder'"),
        ({"--out": "scores.xlsx"}, "its suffix '.xlsx' is none of .parquet, .csv, .jsonl"),
        ({"--out": "none/scores.csv"}, "there is no folder 'none'"),
        ({"--out": "policy.json/scores.csv"}, "there is no folder 'policy.json'"),
        ({"--export": "cvat:a.json"}, "'cvat:a.json' is no export; known forms: fiftyone:FILE, label-studio:FILE"),
        ({"--export": "fiftyone:none/a.json"}, "the export 'fiftyone' cannot be written to 'none/a.json'"),
        ({"--rejected": "new/rejected"}, "lies in 'new', whose images are scored"),
        ({"--rejected": "policy.json"}, "it is a file; give a folder"),
        ({"--model": "onnx:none.onnx"}, "'none.onnx', which does not exist"),
        ({"--level": "2"}, "level is 2.0, expected a share between 0 and 1"),
        ({"--on-error": "ignore"}, "on_error='ignore'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    secondlook: Command, place: Path, changed: dict[str, str], sentence: str
) -> None:
    (place / "damaged.json").write_text('{"format": "second')
    options = {"--policy": "policy.json", "--data": "folder:new/", "--out": "scores.csv", **changed}
    done = secondlook("score", *(text for pair in options.items() for text in pair))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (place / "scores.csv").exists()
    assert not (place / "scores.csv.parts").exists()


def test_a_full_disk_is_one_sentence(secondlook: Command, place: Path) -> None:
    """A limit on the size of files stands for a disk without room; afterwards the same command succeeds."""
    program = Path(sys.executable).with_name("secondlook")
    command = f"ulimit -f 4; exec {program} score {' '.join(GIVEN)} --out scores.csv --answers"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=place, check=False)
    assert done.returncode == 2
    assert "cannot be written to" in done.stderr
    assert "File too large; make room or choose another place, and start again" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not [path for path in place.rglob("*") if path.name.endswith(".tmp")]
    done = secondlook("score", *GIVEN, "--out", "scores.csv", "--per-view")
    assert done.returncode == 0, done.stderr
