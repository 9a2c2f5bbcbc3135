"""`secondlook views` and `secondlook list` as users run them."""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from secondlook.cli import info
from tests.cli.conftest import Command, Here


def test_show_writes_an_image_and_warns_of_a_preset(here: Here) -> None:
    done = here.ok("views", "show", "identity, hflip, rotate:5", "photo.jpg", "-o", "sheet.png", "--paper")
    assert done.out.startswith("x\n⇔\n↻5\n")
    assert "sheet.png" in done.out
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 200
    done = here.ok("views", "show", "svhn", "photo.jpg")
    assert done.err.startswith("warning: ")
    assert "'svhn'" in done.err
    assert "Use 'digits'" in here.ok("list", "views").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["natural", "absent.jpg"], "absent.jpg"),
        (["naturel", "photo.jpg"], "Did you mean 'natural'?"),
        (["identity zoom:0", "photo.jpg"], "'zoom:0'"),
        (["natural", "photo.jpg", "-o", "no/such/folder/sheet.png"], "'no/such/folder/sheet.png'"),
        (["natural", "photo.jpg", "-o", "sheet.nonsense"], "'sheet.nonsense'"),
        (["natural", "broken.jpg"], "broken.jpg"),
        (["identity hflip", "photo.jpg", "--max-pixels", "2399"], ("60 x 40 = 2400", "--max-pixels")),
    ],
)
def test_bad_input_is_one_sentence(here: Here, arguments: list[str], told: str | tuple[str, ...]) -> None:
    Path("broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    done = here.refuse("views", "show", *arguments, told=told)
    assert "skip" not in done.err  # there is only one image
    here.ok("views", "show", "identity hflip", "photo.jpg", "--max-pixels", "2400")


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
