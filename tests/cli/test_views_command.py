"""`secondlook views`, as a user runs it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from secondlook.views import PRESETS, STEPS

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


def test_list_tells_every_preset_and_step(secondlook: Command) -> None:
    done = secondlook("views", "list")
    assert done.returncode == 0
    for name in PRESETS:
        assert name in done.stdout
    for step in STEPS.values():
        assert step.form in done.stdout
    assert "Use 'digits'" in done.stdout


def test_list_for_machines(secondlook: Command) -> None:
    catalog = json.loads(secondlook("views", "list", "--json").stdout)
    assert [preset["name"] for preset in catalog["presets"]] == list(PRESETS)
    assert {step["form"] for step in catalog["steps"]} == {step.form for step in STEPS.values()}


@pytest.mark.usefixtures("picture")
def test_show_draws_a_sheet(secondlook: Command, tmp_path: Path) -> None:
    done = secondlook("views", "show", "identity, hflip, rotate:5", "photo.jpg", "-o", "sheet.png", "--paper")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "x\n⇔\n↻5\n3 views of photo.jpg in sheet.png\n"
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 200


@pytest.mark.usefixtures("picture")
def test_the_svhn_warning_is_shown(secondlook: Command) -> None:
    done = secondlook("views", "show", "svhn", "photo.jpg")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: views 'svhn': this set is kept for the record only")


@pytest.mark.usefixtures("picture")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["natural", "absent.jpg"], "absent.jpg"),
        (["naturel", "photo.jpg"], "Did you mean 'natural'?"),
        (["identity zoom:0", "photo.jpg"], "F of step 'zoom:F' in view 'zoom:0' is 0"),
        (["natural", "photo.jpg", "-o", "no/such/folder/sheet.png"], "cannot be written to 'no/such/folder/sheet.png'"),
        (["natural", "photo.jpg", "-o", "sheet.nonsense"], "cannot be written to 'sheet.nonsense'"),
        (["natural", "broken.jpg"], "image broken.jpg cannot be read: it is damaged or cut short"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    secondlook: Command, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    done = secondlook("views", "show", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "skip" not in done.stderr  # there is one image, and nothing to go on with
