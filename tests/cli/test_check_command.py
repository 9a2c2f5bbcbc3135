"""`secondlook check`, and the same check at the start of `evaluate`."""

import shutil
from pathlib import Path

from tests.cli.conftest import Here

LINE = "--model onnx:model.onnx --data folder:val/"
EVALUATE = f"evaluate {LINE} --views identity --resamples 5"


def test_right_setup_exits_with_0_and_a_wrong_one_with_1_and_the_options_to_paste(here: Here) -> None:
    done = here("check", *LINE.split())
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].startswith("as given")
    assert here("check", *LINE.split(), "--quiet").out == ""
    done = here("check", *LINE.split(), "--mean", ".5,.5,.5", "--std", ".1,.1,.1")
    assert (done.code, done.err) == (1, "")
    assert "--mean 0.0 --std 1.0" in done.out
    here.ok("check", *LINE.split(), "--mean", "0", "--std", "1")
    done = here("check", *LINE.split(), "--model-option", "scale=1e-5", "--json")
    assert done.code == 1
    pasted = done.json["options"].split()
    assert pasted == ["--model-option", f"scale={done.json['better']['settings']['scale']}"]
    here.ok("check", *LINE.split(), *pasted)


def test_limit_is_the_number_of_images(here: Here) -> None:
    readings = here.ok("check", *LINE.split(), "--limit", "40", "--json").json["readings"]
    assert max(one["images"] for one in readings) == 40
    here.fail("check", *LINE.split(), "--limit", "0", told="--limit")


def test_mean_of_pixels_is_refused_and_unlabeled_images_give_a_hint(here: Here) -> None:
    for command in (f"check {LINE}", f"{EVALUATE} --out run"):
        here.refuse(*command.split(), "--mean", "125,123,114", told="--mean 0.4902,0.4824,0.4471")
    done = here.ok(*f"check {LINE}?labels=none --mean .5,.5,.5 --std 3".split())
    assert "labeled images" in done.out


def test_renamed_class_folder_is_named_and_can_be_put_back_in_order(here: Here) -> None:
    assert here(*EVALUATE.split(), "--out", "right").err == ""
    shutil.copytree("val", "renamed")
    Path("renamed/2").rename("renamed/two")
    check, evaluate = (line.replace("val/", "renamed/") for line in (f"check {LINE}", f"{EVALUATE} --out run"))
    done = here(*check.split())
    assert done.code == 1
    assert "'two'" in done.out
    listed = done.out.partition("one per line: ")[2].rstrip(".\n").split(", ")
    assert listed == ["0", "1", "two", *"3456789"]
    Path("classes.txt").write_text("\n".join(listed))
    here.ok(*check.replace("renamed/", "renamed/?classes=classes.txt").split())
    assert "'two'" in here.ok(*evaluate.split()).err
    assert "'two'" in here("info", "run").out
    assert "two" not in here(*evaluate.replace("run", "other").split(), "--no-check").err
    assert here(*evaluate.replace("run", "another").split(), "--quiet").err == ""
