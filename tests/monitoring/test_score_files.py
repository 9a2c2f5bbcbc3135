"""`monitor_scores`: the files it reads, the state of its folder, and its errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from secondlook.decisions import SCORE_FORMATS
from secondlook.errors import MonitoringError
from secondlook.monitoring import Monitor, monitor_scores
from secondlook.predictions import Execution
from tests.monitoring.streams import CLASSES, make_policy, make_rows, write_parquet

POLICY = make_policy()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy and the scores of three days."""
    monkeypatch.chdir(tmp_path)
    POLICY.save("policy.json")
    Path("scores").mkdir()
    for day in range(3):
        write_day(day)
    return tmp_path


def write_day(day: int, *, damage: float = 0.0) -> Path:
    return write_parquet(Path("scores") / f"day{day}.parquet", make_rows(300, first=300 * day, damage=damage))


def monitor(*scores: str, **options: Any) -> Any:
    execution = Execution(progress=False)
    return monitor_scores("policy.json", scores or ["scores/*.parquet"], "monitor", execution=execution, **options)


def read_results() -> tuple[bytes, bytes]:
    return Path("monitor/state.json").read_bytes(), Path("monitor/monitor.json").read_bytes()


def test_files_are_read_in_order_and_only_once(folder: Path) -> None:
    """One run a day gives the same bytes as one run at the end."""
    first, whole = monitor(), Monitor(POLICY)
    for day in range(3):
        whole.update(make_rows(300, first=300 * day))
    assert (first.new_files, first.status) == (3, whole.status())
    expected = read_results()
    shutil.rmtree("monitor")
    for day in range(3):
        assert monitor(*(f"scores/day{done}.parquet" for done in range(day + 1))).new_files == 1
    assert monitor().new_files == 0
    assert read_results() == expected
    write_day(3)
    again = monitor()
    assert (again.new_files, again.status.images) == (1, 1176)
    names = [Path(file["name"]).name for file in json.loads(Path("monitor/monitor.json").read_text())["files"]]
    assert names == [f"day{day}.parquet" for day in range(4)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_all_formats_of_scores_are_monitored_alike(folder: Path, suffix: str) -> None:
    """Every format gives the same state, also with ids like numbers or formulas, and columns that begin empty."""
    policy = POLICY.model_copy(update={"top_k": 2})
    rows = make_rows(600)
    for place, row in enumerate(rows):
        row |= {"id": f"00{place}" if place % 2 else f'=a,"{place}', "labels": [row["label"], 0]}
        row |= {"disagreement": None} if place < 300 else {}
    rows = [row if row["reason"] is None else {**row, "labels": None} for row in rows]
    results: list[list[object]] = []
    for name in (".parquet", suffix):
        table = pa.Table.from_pylist(list(rows))
        with Path(f"scores{name}").open("wb") as file:
            SCORE_FORMATS[name].write(file, table.schema, [table])
        done = monitor_scores(policy, f"scores{name}", f"out{name}", execution=Execution(progress=False))
        results.append([{**done.to_dict(), "files": []}, Path(f"out{name}/to_review.csv").read_bytes()])
        assert done.status.images == 588
        assert done.status.skipped == 12
    assert results[0] == results[1]


def test_shuffled_files_have_no_order(folder: Path) -> None:
    """Images that are sorted by confidence raise an alarm, and none in random order."""
    rows = sorted(make_rows(600, first=5000), key=lambda row: -(row["confidence"] or 0.0))
    write_parquet(Path("sorted.parquet"), rows)
    assert monitor("sorted.parquet").status.shift.raised
    results = []
    for _ in range(2):
        shutil.rmtree("monitor")
        done = monitor("sorted.parquet", shuffle=True)
        assert not done.status.shift.raised
        assert (done.status.images, done.status.accepted) == (588, sum(row["accept"] for row in rows))
        results.append(read_results())
    assert results[0] == results[1]


def test_files_before_a_broken_one_are_recorded(folder: Path) -> None:
    Path("scores/day1.parquet").write_text("damaged")
    with pytest.raises(MonitoringError, match="day1"):
        monitor()
    read = Monitor.load("monitor/state.json", POLICY).files
    assert [Path(file.name).name for file in read] == ["day0.parquet"]
    write_day(1)
    assert monitor().new_files == 2


@pytest.mark.parametrize("pattern", ["scores", "scores/", "scores/day?.parquet", "URL", "scores/*"])
def test_folders_patterns_and_urls_name_the_same_files(folder: Path, pattern: str) -> None:
    (folder / "scores" / "_job.json").write_text("{}")
    (folder / "scores" / ".hidden.parquet").write_text("")
    pattern = (folder / "scores").as_uri() if pattern == "URL" else pattern
    result = monitor(pattern, pattern)
    assert result.status.images == 882
    assert [Path(file.name).name for file in result.monitor.files] == [f"day{day}.parquet" for day in range(3)]


def test_moved_files_are_recognized_and_old_files_may_be_removed(folder: Path) -> None:
    images = monitor().status.images
    Path("scores").rename("archive")
    Path("archive/day0.parquet").unlink()
    again = monitor("archive")
    assert (again.new_files, again.status.images) == (0, images)


def copy_audited_image() -> None:
    """Write a file with an image that is in the stream already."""
    audited = Monitor.load("monitor/state.json", POLICY).audited[0]
    row = {"id": audited.id, "audit": True, "accept": True, "audit_probability": 0.05, "confidence": 0.9}
    write_parquet(Path("scores/day9.parquet"), [{**make_rows(1)[0], **row}])


@pytest.mark.parametrize(
    ("change", "offending"),
    [
        (lambda: write_day(1, damage=1.0), "day1.parquet' has changed"),
        (lambda: shutil.copy("scores/day2.parquet", "scores/copy.parquet"), "copy.parquet"),
        (lambda: Path("scores/day9.parquet").write_text("id,label"), "day9.parquet', the content"),
        (copy_audited_image, "day9.parquet', an image 'day/"),
    ],
)
def test_changed_and_broken_files_are_errors(folder: Path, change: Callable[[], object], offending: str) -> None:
    monitor()
    before = read_results()
    change()
    with pytest.raises(MonitoringError) as error:
        monitor()
    assert offending in str(error.value)
    assert read_results() == before


@pytest.mark.parametrize(
    ("pattern", "offending"),
    [
        ("nothing/*.parquet", "nothing"),
        ("scores.txt", "is not a score file"),
        ("scores.csv", "'label'"),
        ("scores.jsonl", "scores.jsonl'"),
        ("deep.jsonl", "deep.jsonl'"),
        ("missing.parquet", "missing"),
    ],
)
def test_invalid_score_files_are_errors(folder: Path, pattern: str, offending: str) -> None:
    Path("scores.txt").write_text("id,label")
    Path("scores.csv").write_text("id\n1")
    Path("scores.jsonl").write_text("id,label")
    Path("deep.jsonl").write_text('{"id": "a", "label": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(MonitoringError, match=offending):
        monitor(pattern)


def test_files_before_a_broken_one_are_kept(folder: Path) -> None:
    Path("scores/day3.parquet").write_text("broken")
    with pytest.raises(MonitoringError, match=r"day3\.parquet"):
        monitor()
    assert [Path(file.name).name for file in Monitor.load("monitor/state.json", POLICY).files] == [
        f"day{day}.parquet" for day in range(3)
    ]
    write_day(3)
    assert monitor().new_files == 1


def test_options_of_a_folder_are_kept(folder: Path) -> None:
    monitor(alpha=0.01, window=100)
    assert monitor().monitor.alpha == 0.01
    with pytest.raises(MonitoringError, match=r"alpha=0\.05 .*0\.01"):
        monitor(alpha=0.05)
    assert monitor(burn_in=3).status.burn_in == 3, "which changes no number"
    with pytest.raises(MonitoringError, match="burn_in=2000"):
        monitor(burn_in=2000)


def test_labels_are_resubmitted_with_more_lines(folder: Path) -> None:
    first = monitor()
    audits = [audit.id for audit in first.monitor.audited]
    assert Path("monitor/to_review.csv").read_text().splitlines() == ["id,label", *(f"{id_}," for id_ in audits)]
    read = [row for row in make_rows(300) if row["reason"] is None]
    rejected = next(row["id"] for row in read if not row["accept"])
    other = next(row["id"] for row in read if row["accept"] and not row["audit"])
    half = len(audits) // 2
    given = [f"{rejected},None of these", f"{other},dog", f"{audits[-1]},"]
    lines = ["id,label", *(f"{id_},cat" for id_ in audits[:half]), *given]
    Path("labels.csv").write_text("\n".join(lines))
    result = monitor(reviewed="labels.csv")
    assert (result.new_labels, result.ignored_labels) == (half + 1, 1)
    assert result.status.unknown is not None
    assert result.status.unknown.none_of_these == 1
    assert result.status.audit is not None
    assert (result.status.audit.labels, result.status.audit.pending) == (half, len(audits) - half)
    assert result.queue is not None
    assert result.queue.read_text().splitlines() == ["id,label", *(f"{id_}," for id_ in audits[half:])]
    Path("labels.csv").write_text("\n".join([*lines[:-1], *(f"{id_},{CLASSES.index('dog')}" for id_ in audits[half:])]))
    result = monitor(reviewed="labels.csv")
    assert (result.new_labels, result.ignored_labels, result.queue) == (len(audits) - half, 1, None)


@pytest.mark.parametrize(
    ("content", "offending"),
    [
        (b"id,label\nnowhere.jpg,cat", "nowhere.jpg"),
        (b"id,class\nday/000000.jpg,cat", "'label'"),
        (b"id,label\nday/000000.jpg,horse", "'horse'"),
        (b"id,label\nday/000000.jpg,cat\nday/000000.jpg,dog", "two labels"),
        (b"id,label\n\xff,cat\n", "UTF-8"),
        (None, "missing"),
        (b"", "to_review"),
    ],
)
def test_unusable_labels_are_errors(folder: Path, content: bytes | None, offending: str) -> None:
    """Including the list to review at its own path."""
    monitor()
    path = {"missing": "missing.csv", "to_review": "monitor/to_review.csv"}.get(offending, "labels.csv")
    if content:
        Path(path).write_bytes(content)
    with pytest.raises(MonitoringError, match=offending):
        monitor(reviewed=path)


def test_labels_from_spreadsheets_are_read(tmp_path: Path) -> None:
    path, rows = tmp_path / "labels.csv", make_rows(3)
    for row, id_ in zip(rows, ("=1.jpg", "b.jpg", "c.jpg"), strict=True):
        row |= {"id": id_, "accept": True, "confidence": 0.9, "audit": True, "audit_probability": 0.05}
    monitor = Monitor(POLICY)
    monitor.update(rows)
    path.write_bytes("\ufefflabel,note,id\r\ncat,,'=1.jpg\r\n dog ,blurred,b.jpg\r\n,later,c.jpg\r\n".encode())
    assert monitor.add_labels(path) == 2
    assert [audit.label for audit in monitor.audited] == [CLASSES.index("cat"), CLASSES.index("dog"), None]


def test_result_has_windows_images_and_files(folder: Path) -> None:
    monitor(window=200)
    content = json.loads(Path("monitor/monitor.json").read_text())
    assert content["format"] == "secondlook monitor result"
    assert content["policy"] == POLICY.checksum
    options = {"alpha": 0.05, "window": 200, "burn_in": 100, "seed": 0, "reviewer_error": 0.0, "agreeing": 1}
    assert content["options"] == options
    assert [window["images"] for window in content["windows"]] == [200, 200, 200, 200, 82]
    assert {"coverage", "confidence", "disagreement", "estimated_risk", "log10_evidence"} <= set(content["windows"][0])
    assert len(content["worst_images"]) == 24
    assert content["alarm"] is False
