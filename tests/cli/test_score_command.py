"""`secondlook score` as users run it, with the demo's network on real digits."""

import csv
import json
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

import secondlook as sl
from secondlook.classifiers import load_classifier
from secondlook.cli.demo import digit_images, split_digits
from secondlook.cli.info import describe
from secondlook.policies import Policy, certify, threshold_for
from secondlook.predictions import collect
from tests.classifiers.conftest import RunsCode
from tests.cli.conftest import MODEL as NETWORK
from tests.cli.conftest import Here
from tests.policy_maker import attach

MODEL = f"onnx:{NETWORK}?output=logits&gray=luminance"
VIEWS = sl.ViewSet("identity shift:1,0 shift:0,1 rotate:5")
NEW = 120


def make_policy(model: str, **goal: Any) -> Policy:
    """Make a policy from 600 digits that the network never saw, and that are not scored."""
    images, labels = digit_images()
    places = split_digits()[1][NEW : NEW + 600]
    classifier = load_classifier(model)
    preds = collect(classifier, images[places], VIEWS, labels=labels[places])
    rule = certify(preds, "mean", **goal) if "risk" in goal else threshold_for(preds, **goal)
    return attach(rule, classifier=classifier, views=VIEWS.texts)


@pytest.fixture(scope="module")
def policy() -> Policy:
    made = make_policy(MODEL, risk=0.05, delta=0.1)
    assert made.certified
    return made


@pytest.fixture(autouse=True)
def place(here: Here, tmp_path: Path, policy: Policy) -> Path:
    """The folder of the user: the policy, and new digits as files."""
    policy.save(tmp_path / "policy.json")
    (tmp_path / "new").unlink()
    (tmp_path / "new").mkdir()
    images, _ = digit_images()
    for number in split_digits()[1][:NEW]:
        Image.fromarray(images[number, :, :, 0]).save(tmp_path / "new" / f"{number:04d}.png")
    return tmp_path


GIVEN = ("--policy", "policy.json", "--data", "folder:new/")
SCORE = ("score", *GIVEN, "--out", "scores.csv")


def save_for(policy: Policy, path: Path, **classifier: str) -> None:
    """Save a policy as if it had been made for a classifier with another name or digest."""
    policy.model_copy(update={"classifier": policy.known_classifier.model_copy(update=classifier)}).save(
        path, overwrite=True
    )


def test_score_reject_and_export(here: Here, place: Path) -> None:
    done = here.ok(
        *("score", *GIVEN, "--out", "scores.parquet", "--rejected", "rejected/", "--per-view"),
        *("--export", "label-studio:tasks.json", "--export", "fiftyone:labels.json"),
    )
    assert done.out.startswith(f"{NEW} images: ")
    for value in ("5 % errors", "90 %", "scores.parquet", "rejected", "label-studio:tasks.json"):
        assert value in done.out
    rows = pq.read_table(place / "scores.parquet").to_pylist()
    rejected = [row for row in rows if not row["accept"]]
    assert 0 < len(rejected) < NEW / 2
    assert len(rows) == NEW
    assert len(rows[0]["view_labels"]) == len(VIEWS)
    assert len(list((place / "rejected").rglob("*.png"))) == len(rejected)
    assert len(json.loads((place / "tasks.json").read_text())) == len(rejected)
    assert len(json.loads((place / "labels.json").read_text())["labels"]) == len(rejected)
    assert not (place / "scores.parquet.parts").exists()


def test_json_quiet_and_settings_file(here: Here, place: Path) -> None:
    told = here("score", *GIVEN, "--out", "a.csv", "--json").json
    assert told["images"] == told["accepted"] + told["rejected"] == NEW
    assert told["guarantee"].startswith("at most 5 %")
    quiet = here("score", *GIVEN, "--out", "b.csv", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert (place / "a.csv").read_bytes() == (place / "b.csv").read_bytes()
    (place / "score.toml").write_text('[score]\npolicy = "policy.json"\ndata = "folder:new/"\nout = "c.jsonl"\n')
    here.ok("score", "--config", "score.toml")
    with (place / "a.csv").open(newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert [json.loads(line)["id"] for line in (place / "c.jsonl").read_text().splitlines()] == ids


def test_skipped_images_are_listed(here: Here, place: Path) -> None:
    (place / "new" / "broken.png").write_bytes(b"no picture")
    here.refuse(*SCORE, told="broken.png")
    done = here.ok(*SCORE, "--on-error", "skip")
    assert "1 skipped" in done.out
    assert "broken.png" in done.out
    here.ok("score", "--policy", "policy.json", "--data", "folder:new/?on_error=skip", "--out", "b.csv")
    assert (place / "scores.csv").read_bytes() == (place / "b.csv").read_bytes()


def test_moved_model_inherits_the_options_of_the_policy(here: Here, place: Path) -> None:
    make_policy(f"{MODEL}&mean=0.1&std=0.5", coverage=0.8).save(place / "policy.json", overwrite=True)
    here.ok("score", *GIVEN, "--out", "first.csv")
    (place / "moved.onnx").write_bytes(NETWORK.read_bytes())
    here.ok(*SCORE, "--model", "onnx:moved.onnx")
    assert (place / "scores.csv").read_bytes() == (place / "first.csv").read_bytes()
    done = here.refuse(*SCORE, "--model", "onnx:moved.onnx?gray=luminance&mean=0.2")
    assert "0.2" in done.err, "given options are used as they are"
    with (place / "moved.onnx").open("ab") as file:
        file.write(b"\x32\x01x")  # another description of the model, and so another digest
    done = here.ok("score", *GIVEN, "--out", "other.csv", "--model", "onnx:moved.onnx?threads=1", "--allow-mismatch")
    assert (place / "other.csv").read_bytes() == (place / "first.csv").read_bytes()
    assert "mean=0.1" in done.out


def test_moved_model_can_be_given_but_another_needs_allow_mismatch(here: Here, place: Path, policy: Policy) -> None:
    (place / "moved.onnx").write_bytes(NETWORK.read_bytes())
    save_for(policy, place / "policy.json", name="onnx:gone.onnx?output=logits")
    here.refuse(*SCORE, told=("gone.onnx", "--model"))
    here.ok(*SCORE, "--model", "onnx:moved.onnx?output=logits&gray=luminance")
    save_for(policy, place / "policy.json", digest="0" * 64)
    here.refuse(*SCORE, told=("000000000000", "--allow-mismatch"))
    assert "guarantee: none" in here.ok(*SCORE, "--allow-mismatch", "--force").out


def test_edited_policy_has_no_guarantee(here: Here, place: Path) -> None:
    content = json.loads((place / "policy.json").read_text())
    intact = describe(str(place / "policy.json"))
    assert str(intact["file"]).startswith("not damaged")
    content["threshold"] -= 0.2
    (place / "policy.json").write_text(json.dumps(content))
    for given in ((), ("--model", MODEL)):
        done = here.ok(*SCORE, *given)
        first, *others = done.err.splitlines()
        assert first.startswith("warning: policy 'policy.json' was changed")
        assert all("the views 'auto' leave out harmful ones" in line for line in others), (
            "these views harm the network, which is another warning"
        )
        assert "guarantee: none, since the policy was changed" in done.out
    told = here("info", "policy.json", "--json")
    assert "policy.json" in told.err
    facts = told.json
    assert facts["file"] != intact["file"]
    assert facts["guarantee"].startswith("none")


def test_other_scores_are_replaced_only_by_force(here: Here, place: Path) -> None:
    line, scores = ("score", *GIVEN, "--out", "scores.parquet"), place / "scores.parquet"
    here.ok(*line)
    first = scores.read_bytes()
    (place / "new" / "another.png").write_bytes(next((place / "new").iterdir()).read_bytes())
    here.fail(*line, told=("'scores.parquet'", "--force", "another name"))
    assert scores.read_bytes() == first
    here.ok(*line, "--force")
    assert len(pq.read_table(scores)) == NEW + 1


def test_policy_from_elsewhere_does_not_act(here: Here, place: Path, policy: Policy) -> None:
    (place / "evil.pkl").write_bytes(pickle.dumps(RunsCode(place / "ran")))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v2/models/m?timeout=0.2&retries=0&output=logits"
        for name in (url, "sklearn:evil.pkl?trust_pickle=true"):
            save_for(policy, place / "policy.json", name=name)
            done = here.refuse(*SCORE, "--allow-mismatch", told=(name, "--model"))
            assert "is not loaded" in done.err
            assert describe(str(place / "policy.json"))["classifier"] == name
        with pytest.raises(BlockingIOError):
            server.accept()
    done = here.refuse(*SCORE, "--model", "sklearn:evil.pkl")
    assert "trust_pickle" in done.err, "the policy cannot trust a pickle in the name of the user"
    assert not (place / "ran").exists()
    assert not (place / "scores.csv").exists()


def test_harmful_views_are_warned_of(here: Here, place: Path, policy: Policy) -> None:
    views = ("identity", "shift:1,0", "shift:12,-12")
    policy.model_copy(update={"views": views}).save(place / "policy.json", overwrite=True)
    done = here.ok(*SCORE)
    assert done.err.startswith("warning: ")
    assert "'shift:12,-12'" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--policy none.json", "'none.json'"),
        ("--policy damaged.json", "'damaged.json'"),
        ("--out scores.xlsx", "'.xlsx'"),
        ("--out policy.json/scores.csv", "'policy.json'"),
        ("--export cvat:a.json", "'cvat"),
        ("--export fiftyone:none/a.json", "'none/a.json'"),
        ("--rejected new/rejected", "'new/rejected'"),
        ("--rejected policy.json", "policy.json"),
        ("--level 2", "--level 2.0"),
        ("--link", ("--link", "--rejected")),
        ("--export-all", ("--export-all", "--export")),
        ("--image-prefix=https://a.b/", ("--image-prefix", "--export")),
        ("--image-prefix=", ("--image-prefix", "--export")),
    ],
)
def test_bad_input_is_one_sentence_with_exit_code_2(
    here: Here, place: Path, words: str, told: str | tuple[str, ...]
) -> None:
    (place / "damaged.json").write_text('{"format": "second')
    here.refuse(*SCORE, *words.split(), told=told)
    assert not (place / "scores.csv").exists()
    assert not (place / "scores.csv.parts").exists()


@pytest.mark.posix
def test_full_disk_is_an_error_message(here: Here, place: Path) -> None:
    """A limit on the size of files stands for a disk without room; afterwards the same command succeeds."""
    program = Path(sys.executable).with_name("secondlook")
    command = f"ulimit -f 4; exec {program} score {' '.join(GIVEN)} --out scores.csv --per-view"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=place, check=False)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in place.rglob("*") if path.name.endswith(".tmp")]
    here.ok(*SCORE, "--per-view")
