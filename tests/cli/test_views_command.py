"""`secondlook views` and `secondlook list` as users run them."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.cli import info

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


@pytest.mark.usefixtures("picture")
def test_show_writes_an_image(secondlook: Command, tmp_path: Path) -> None:
    done = secondlook("views", "show", "identity, hflip, rotate:5", "photo.jpg", "-o", "sheet.png", "--paper")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("x\n⇔\n↻5\n")
    assert "sheet.png" in done.stdout
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 200


@pytest.mark.usefixtures("picture")
def test_warning_of_a_preset_is_shown(secondlook: Command) -> None:
    done = secondlook("views", "show", "svhn", "photo.jpg")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: ")
    assert "'svhn'" in done.stderr


@pytest.mark.usefixtures("picture")
@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["natural", "absent.jpg"], "absent.jpg"),
        (["naturel", "photo.jpg"], "Did you mean 'natural'?"),
        (["identity zoom:0", "photo.jpg"], "'zoom:0'"),
        (["natural", "photo.jpg", "-o", "no/such/folder/sheet.png"], "'no/such/folder/sheet.png'"),
        (["natural", "photo.jpg", "-o", "sheet.nonsense"], "'sheet.nonsense'"),
        (["natural", "broken.jpg"], "broken.jpg"),
    ],
)
def test_bad_input_is_one_sentence_with_exit_code_2(
    secondlook: Command, tmp_path: Path, arguments: list[str], value: str
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    done = secondlook("views", "show", *arguments)
    assert done.returncode == 2
    assert value in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "skip" not in done.stderr  # there is only one image


@pytest.mark.usefixtures("picture")
def test_limit_of_pixels_is_an_option(secondlook: Command) -> None:
    done = secondlook("views", "show", "hflip", "photo.jpg", "--max-pixels", "2399")
    assert done.returncode == 2
    assert "60 x 40 = 2400" in done.stderr
    assert "--max-pixels" in done.stderr
    assert secondlook("views", "show", "identity hflip", "photo.jpg", "--max-pixels", "2400").returncode == 0


def registries(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the registries as they are in a new process, without what other tests have registered in this one."""
    listed = f"{{title: list(one) for title, one in info.REGISTRIES[{kind!r}].items()}}"
    code = f"from secondlook.cli import info; print({listed})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ast.literal_eval(done.stdout)
    return {title: {name: registry[name] for name in names[title]} for title, registry in info.REGISTRIES[kind].items()}


@pytest.mark.parametrize("kind", info.REGISTRIES)
def test_list_prints_every_record(secondlook: Command, kind: str) -> None:
    done = secondlook("list", kind)
    assert done.returncode == 0, done.stderr
    listed = json.loads(secondlook("list", kind, "--json").stdout)
    for title, registry in registries(kind).items():
        assert len(registry) > 1
        assert all(record.form in done.stdout for record in registry.values())
        rows = [(record.name, record.form) for record in registry.values()]
        assert [(row["name"], row["form"]) for row in listed[title]] == rows
        assert all(row["summary"] for row in listed[title])


def test_list_shows_the_warning_of_a_preset(secondlook: Command) -> None:
    assert "Use 'digits'" in secondlook("list", "views").stdout
