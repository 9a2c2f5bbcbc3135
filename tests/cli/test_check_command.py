"""`secondlook check`, and the same check at the start of `evaluate`."""

import shutil
from pathlib import Path

from tests.cli.conftest import Here

LINE = "--model onnx:model.onnx --data folder:val/"
EVALUATE = f"evaluate {LINE} --views identity --resamples 5"


def rename_class(old: str, new: str) -> None:
    """Make the folder `renamed` with the images of val/, in which one class has another name."""
    shutil.copytree("val", "renamed")
    Path("renamed", old).rename(Path("renamed", new))


def test_right_setup_exits_with_0(here: Here) -> None:
    done = here("check", *LINE.split())
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].startswith("as given")
    assert here("check", *LINE.split(), "--quiet").out == ""


def test_wrong_setup_exits_with_1_and_the_options_to_paste(here: Here) -> None:
    done = here("check", *LINE.split(), "--mean", ".5,.5,.5", "--std", ".1,.1,.1")
    assert done.code == 1
    assert done.err == ""
    assert "--mean 0.0 --std 1.0" in done.out
    here.ok("check", *LINE.split(), "--mean", "0", "--std", "1")


def test_options_of_models_can_be_pasted(here: Here) -> None:
    done = here("check", *LINE.split(), "--model-option", "scale=1e-5", "--json")
    assert done.code == 1
    pasted = done.json["options"].split()
    assert pasted == ["--model-option", f"scale={done.json['better']['settings']['scale']}"]
    here.ok("check", *LINE.split(), *pasted)


def test_mean_of_pixels_from_0_to_255_is_refused_with_the_repair(here: Here) -> None:
    for command in ("check", EVALUATE):
        here.refuse(
            *command.split(),
            *LINE.split(),
            *("--out", "run") * (command != "check"),
            "--mean",
            "125,123,114",
            told="--mean 0.4902,0.4824,0.4471",
        )


def test_renamed_class_folder_is_named_and_can_be_put_back_in_order(here: Here) -> None:
    rename_class("2", "two")
    line = f"check {LINE}".replace("folder:val/", "folder:renamed/")
    done = here(*line.split())
    assert done.code == 1
    assert "'two'" in done.out
    listed = done.out.partition("one per line: ")[2].rstrip(".\n").split(", ")
    assert listed == ["0", "1", "two", *"3456789"]
    Path("classes.txt").write_text("\n".join(listed))
    here.ok(*line.replace("renamed/", "renamed/?classes=classes.txt").split())


def test_unlabeled_images_give_a_hint_only(here: Here) -> None:
    done = here.ok(*f"check {LINE}?labels=none --mean .5,.5,.5 --std 3".split())
    assert "labeled images" in done.out


def test_evaluate_warns_of_a_wrong_setup(here: Here) -> None:
    rename_class("2", "two")
    line = f"{EVALUATE} --out run".replace("val/", "renamed/")
    done = here.ok(*line.split())
    assert "'two'" in done.err
    assert "'two'" in here("info", "run").out
    assert "two" not in here(*line.replace("run", "other").split(), "--no-check").err
    assert here(*line.replace("run", "another").split(), "--quiet").err == ""


def test_evaluate_is_silent_for_a_right_setup(here: Here) -> None:
    assert here(*EVALUATE.split(), "--out", "run").err == ""
