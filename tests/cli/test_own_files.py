"""Commands that write folders change no file of anyone else, whatever its name; refused commands change nothing."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Here

VIEWS = ("--views", "identity shift:1,0")
GIVEN = ("--policy", "policy.json", "--data", "folder:new", "--quiet")
PART = ".part-000000-0123456789abcdef.parquet"
OTHERS = [
    ".notes.tmp",
    f"{PART}.{'0f' * 16}.tmp",  # of another program
    "a/.notes.tmp",
    f"a/b/{PART}.{'0f' * 16}.secondlook.tmp",  # of a folder that the command did not make
    f"predictions/a/{PART}.{'0f' * 16}.secondlook.tmp",
    "report-files/notes.csv",
    "service/_lock",
]


@pytest.fixture
def scored(here: Here) -> Here:
    """A run, a policy, scores, and a folder `mine` of someone else with a link to another folder."""
    here.ok("evaluate", "--model", "onnx:model.onnx", "--data", "folder:val", "--quiet", *VIEWS, "--out", "run")
    here.ok("calibrate", "--run", "run", "--coverage", "0.8", "--method", "mean", "--quiet")
    here.ok("score", *GIVEN, "--out", "scores.parquet")
    for name in OTHERS:
        for folder in (Path("mine"), Path("outside")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
    Path("mine/link").symlink_to(Path("outside").absolute())
    Path("mine/.policy.json." + "0f" * 16 + ".secondlook.tmp").symlink_to(Path("outside/.notes.tmp").absolute())
    return here


def list_files(folder: str) -> dict[str, bytes | Path | None]:
    """Return the content of files, the targets of links, and None for folders."""
    found = sorted(Path(folder).rglob("*"))
    return {
        str(path): path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in found
    }


@pytest.mark.posix
@pytest.mark.parametrize(
    "words",
    [
        ("score", *GIVEN, "--out", "mine/scores.csv", "--rejected", "mine/rejected"),
        ("evaluate", "--model", "onnx:model.onnx", "--data", "folder:val", "--quiet", *VIEWS, "--out", "mine"),
        ("calibrate", "--run", "run", "--coverage", "0.7", "--method", "mean", "--quiet", "--out", "mine/policy.json"),
        (
            "monitor",
            "--policy",
            "policy.json",
            "--scores",
            "scores.parquet",
            "--burn-in",
            "10",
            "--quiet",
            "--out",
            "mine",
        ),
        ("demo", "--out", "mine", "--quiet"),
    ],
    ids=lambda words: words[0],
)
def test_files_of_others_are_kept(scored: Here, words: tuple[str, ...]) -> None:
    before = list_files("mine"), list_files("outside")
    scored.ok(*words)
    if words[0] in ("evaluate", "monitor"):  # a repeated run opens its own files
        scored.ok(*words)
    assert list_files("mine").items() > before[0].items()
    assert list_files("outside") == before[1]
    assert not Path("mine/_lock").exists()


@pytest.mark.posix
def test_refused_commands_change_nothing(scored: Here) -> None:
    def refuse(*words: str) -> None:
        before = list_files("mine")
        assert scored.fail(*words)
        assert list_files("mine") == before

    refuse("score", *GIVEN, "--out", "mine/")
    refuse("score", *GIVEN, "--out", "mine/", "--force")
    refuse("score", *GIVEN, "--out", "mine/scores.csv", "--rejected", "mine/a")
    for name in ("labeled.npz", "rejected", "digits.onnx"):
        Path("mine", name).write_text("mine")
        refuse("demo", "--out", "mine", "--quiet")
        Path("mine", name).unlink()
    Path("mine/state.json").write_text("mine")
    refuse("monitor", "--policy", "policy.json", "--scores", "scores.parquet", "--out", "mine")
    shutil.rmtree("mine")
    scored.ok("score", *GIVEN, "--out", "mine/")
    for name in OTHERS:
        Path("mine", name).parent.mkdir(parents=True, exist_ok=True)
        Path("mine", name).write_text("mine")
    other = ("score", "--policy", "policy.json", "--data", "folder:val", "--quiet", "--out", "mine/")
    refuse(*other)
    refuse(*other, "--force", "--rejected", "outside")
    scored.ok(*other, "--force")
    assert {f"mine/{name}" for name in OTHERS} < set(list_files("mine"))
