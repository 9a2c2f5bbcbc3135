"""Every command in README and the documentation runs as printed."""

import asyncio
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from secondlook.serving import ServiceOptions, server
from secondlook.serving.label_files import NewLabel
from secondlook.serving.request_images import SubmittedImage
from secondlook.serving.service import open_service
from tests.cli.conftest import Here

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
CIFAR10 = ROOT.parent / "shared" / "cifar10"
LONG = "<!-- takes minutes -->\n"
"""Stands before a block about CIFAR-10 files, which a test runs on the first of their images where they are present."""
BLOCK = re.compile(rf"(?P<long>{re.escape(LONG)})?```[a-z]*\n(?P<text>.*?)```", re.DOTALL)
INLINE = re.compile(r"`(secondlook [^`\n]+)`")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.|…|[\[\]|]")
FIRST = [
    "secondlook evaluate --model onnx:model.onnx --data folder:val/ --views digits --out run/ --quiet",
    "secondlook calibrate --run run/ --risk 0.05 --delta 0.05 --out policy.json --quiet",
]


def name_of(page: Path) -> str:
    """Return the path of a page below docs/, or README.md."""
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


def commands_in(page: Path) -> list[str]:
    """Return the commands of a page in order: lines of blocks, then those in running text that are complete."""
    text = page.read_text(encoding="utf-8")
    blocks = [match["text"] for match in BLOCK.finditer(text) if not match["long"] or CIFAR10.is_dir()]
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    inline = INLINE.findall(BLOCK.sub("", text))
    found = [line.partition("  #")[0].strip() for line in lines if line.startswith("secondlook ")]
    # Two words, such as `secondlook search`, are the name of a command.
    complete = [line for line in inline if not PLACEHOLDER.search(line) and (len(line.split()) > 2 or "demo" in line)]
    return list(dict.fromkeys([*found, *complete]))


def test_commands_are_found() -> None:
    assert "secondlook report run/" in commands_in(ROOT / "README.md")
    assert "secondlook list views" in commands_in(DOCS / "views.md")
    assert sum(len(commands_in(page)) for page in PAGES) > 15


@pytest.mark.parametrize("page", [page for page in PAGES if commands_in(page)], ids=name_of)
def test_documented_commands_run_as_printed(
    here: Here, page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A service is opened with all it needs, and stops when it would begin to listen.
    monkeypatch.setattr(server, "run_server", lambda *_, **__: None)
    first = FIRST
    if name_of(page) == "tutorial.md":  # which is about photographs, and begins from nothing
        first = []
        for item in ("model.onnx", "val", "new"):
            Path(item).unlink()
            Path(item).symlink_to(request.getfixturevalue("photographs") / item)
    if name_of(page) == "service.md":  # whose readers have reviewed images
        for command in FIRST:
            here(*shlex.split(command)[1:])
        first = []
        labels = {str(file): file.parent.name for file in Path("val").glob("*/*.png")}
        with open_service(Path("policy.json"), ServiceOptions(Path("service"), audit=1.0)) as service:
            submitted = [SubmittedImage(Path(file).read_bytes(), file) for file in labels]
            for start in range(0, len(submitted), 50):
                asyncio.run(service.worker.decide(submitted[start : start + 50]))
            service.reviews.add_labels([NewLabel(id_, id_, int(label)) for id_, label in labels.items()], "Anna")
    Path("data").mkdir()
    if CIFAR10.is_dir():
        Path("resnet56.onnx").symlink_to(CIFAR10 / "resnet56.onnx")
        archive = np.load(CIFAR10 / "test.npz")
        np.savez("test.npz", images=archive["images"][:100], labels=archive["labels"][:100])
    for line in [*first, *commands_in(page)]:
        is_new = line.startswith(("secondlook calibrate", "secondlook label"))
        if line not in FIRST and is_new and "--out next.json" not in line:
            Path("policy.json").unlink(missing_ok=True)  # the page makes its own
        done = here(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
