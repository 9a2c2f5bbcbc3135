"""The Python blocks of README and of each page of the documentation run from top to bottom, as printed."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from stress.server_process import ServerProcess
from tests.cli.test_documented_commands import FIRST, PAGES, ROOT, name_of

BLOCK = re.compile(r"(?P<skipped><!-- downloads -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)
GIVEN = {
    "cookbook.md": """
from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification
config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=10)
ResNetForImageClassification(config).save_pretrained("my-model")
ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=1.0).save_pretrained("my-model")
""",
    "README.md": """
import numpy as np
from PIL import Image
Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save("photo.jpg")
""",
    "labels.md": """
from secondlook.cli.demo import digit_images
ask = lambda id_: int(digit_images()[1][int(id_.removesuffix(".png"))])
""",
    "service.md": """
import numpy as np
from PIL import Image
for name in ("image.png", "first.png", "second.jpg"):
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(name)
""",
}
"""What a page says its reader has, beside the files that `workplace` makes."""


def blocks_of(page: Path) -> list[str]:
    """Return the Python blocks of a page, without those that download something."""
    return [match["code"] for match in BLOCK.finditer(page.read_text(encoding="utf-8")) if not match["skipped"]]


def run_commands(folder: Path, lines: list[str]) -> None:
    program = Path(sys.executable).with_name("secondlook")
    for line in lines:
        words = line.removeprefix("secondlook ").split()
        subprocess.run([program, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def workplace(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, images, two runs and a policy."""
    folder = tmp_path_factory.mktemp("documented")
    for item in digits.iterdir():
        (shutil.copytree if item.is_dir() else shutil.copy)(item, folder / item.name)
    shutil.copy(folder / "model.onnx", folder / "resnet20.onnx")
    (folder / "data").mkdir()
    (folder / "classifiers.toml").touch()
    run_commands(folder, FIRST)
    shutil.copytree(folder / "run", folder / "run-b")
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_python_blocks_run_from_top_to_bottom(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    is_tutorial = name_of(page) == "tutorial.md"  # which is about photographs
    here = tmp_path / "here"
    shutil.copytree(request.getfixturevalue("photographs" if is_tutorial else "workplace"), here)
    if is_tutorial:
        commands = re.findall(
            r"^secondlook ((?:evaluate|calibrate) .*)$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        run_commands(here, commands)
    script = here / "blocks.py"
    code = "\n".join([GIVEN.get(name_of(page), ""), *blocks_of(page)])
    with ExitStack() as stack:
        if name_of(page) == "service.md":
            server = stack.enter_context(ServerProcess(here / "policy.json", tmp_path / "service"))
            code = code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        script.write_text(code, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "MPLBACKEND": "agg"}
        done = subprocess.run(
            [sys.executable, script.name], cwd=here, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, f"{name_of(page)}\n{done.stdout}\n{done.stderr}"
