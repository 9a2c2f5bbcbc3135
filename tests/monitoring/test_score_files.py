"""`monitor_scores`: which files are read, what a folder remembers, and what it refuses."""

import json
from pathlib import Path

import pytest

from secondlook.errors import MonitoringError
from secondlook.monitoring import Monitor, monitor_scores
from secondlook.monitoring.monitor_folder import MonitoredScores
from secondlook.monitoring.scores import collect_labels, list_score_files
from secondlook.predictions import Execution
from tests.monitoring.streams import CLASSES, make_policy, make_rows, write_parquet


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy and the scores of three days."""
    monkeypatch.chdir(tmp_path)
    make_policy().save("policy.json")
    Path("scores").mkdir()
    for day in range(3):
        write_day(day)
    return tmp_path


def write_day(day: int, *, damage: float = 0.0) -> Path:
    return write_parquet(Path("scores") / f"day{day}.parquet", make_rows(300, first=300 * day, damage=damage))


def monitor(*scores: str, **options: object) -> MonitoredScores:
    patterns = list(scores) or ["scores/*.parquet"]
    execution = Execution(progress=False)
    return monitor_scores("policy.json", patterns, "monitor", execution=execution, **options)  # type: ignore[arg-type]


def test_files_are_read_in_order_and_only_once(folder: Path) -> None:
    first = monitor()
    assert (first.new_files, first.status.images) == (3, 882)
    whole = Monitor(make_policy())
    for day in range(3):
        whole.update(make_rows(300, first=300 * day))
    assert first.status == whole.status()
    assert monitor().new_files == 0
    write_day(3)
    again = monitor()
    assert (again.new_files, again.status.images) == (1, 1176)
    names = [Path(file["name"]).name for file in json.loads(Path("monitor/monitor.json").read_text())["files"]]
    assert names == [f"day{day}.parquet" for day in range(4)]


def test_one_run_a_day_gives_the_same_bytes_as_one_run_at_the_end(folder: Path) -> None:
    result = monitor()
    expected = Path("monitor/state.json").read_bytes(), Path("monitor/monitor.json").read_bytes()
    for path in Path("monitor").iterdir():
        path.unlink()
    for day in range(3):
        monitor(*(f"scores/day{done}.parquet" for done in range(day + 1)))
    assert (Path("monitor/state.json").read_bytes(), Path("monitor/monitor.json").read_bytes()) == expected
    assert result.status.images == 882


def test_shuffled_files_have_no_order(folder: Path) -> None:
    """Images that are sorted by confidence raise an alarm, and none in random order."""
    rows = sorted(make_rows(600, first=5000), key=lambda row: -(row["confidence"] or 0.0))
    write_parquet(Path("sorted.parquet"), rows)
    assert monitor("sorted.parquet").status.shift.raised
    for path in Path("monitor").iterdir():
        path.unlink()
    done = monitor("sorted.parquet", shuffle=True)
    assert not done.status.shift.raised
    assert (done.status.images, done.status.accepted) == (588, sum(row["accept"] for row in rows))
    state = Path("monitor/state.json").read_bytes()
    Path("monitor/state.json").unlink()
    monitor("sorted.parquet", shuffle=True)
    assert Path("monitor/state.json").read_bytes() == state


def test_files_before_a_broken_one_are_remembered(folder: Path) -> None:
    Path("scores/day1.parquet").write_text("damaged")
    with pytest.raises(MonitoringError, match="day1"):
        monitor()
    read = Monitor.load("monitor/state.json", make_policy()).files
    assert [Path(file.name).name for file in read] == ["day0.parquet"]
    write_day(1)
    assert monitor().new_files == 2


@pytest.mark.parametrize("pattern", ["scores", "scores/", "scores/day?.parquet", "URL", "scores/*"])
def test_folders_patterns_and_urls_name_the_same_files(folder: Path, pattern: str) -> None:
    (folder / "scores" / "_job.json").write_text("{}")
    (folder / "scores" / ".hidden.parquet").write_text("")
    pattern = (folder / "scores").as_uri() if pattern == "URL" else pattern
    files = list_score_files([pattern])
    assert [Path(file.name).name for file in files] == ["day0.parquet", "day1.parquet", "day2.parquet"]
    assert len(list_score_files([pattern, pattern])) == 3
    assert files[0].read() == (folder / "scores" / "day0.parquet").read_bytes()


def test_moved_files_are_known_by_their_content(folder: Path) -> None:
    monitor()
    Path("scores").rename("archive")
    assert monitor("archive").new_files == 0


def test_old_files_may_be_removed(folder: Path) -> None:
    images = monitor().status.images
    Path("scores/day0.parquet").unlink()
    again = monitor()
    assert (again.new_files, again.status.images) == (0, images)


@pytest.mark.parametrize(
    ("change", "offending"),
    [
        (lambda: write_day(1, damage=1.0), "day1.parquet' has changed"),
        (lambda: Path("scores/copy.parquet").write_bytes(Path("scores/day2.parquet").read_bytes()), "are the same"),
        (lambda: Path("scores/day9.parquet").write_text("id,label"), "day9.parquet', the content is not Parquet"),
        (lambda: write_parquet(Path("scores/day9.parquet"), make_rows(3)), "day9.parquet', an image 'day/"),
    ],
)
def test_changed_and_broken_files_are_errors(folder: Path, change: object, offending: str) -> None:
    monitor()
    before = Path("monitor/state.json").read_bytes()
    rows = make_rows(3)
    rows[0] |= {"audit": True, "accept": True, "audit_probability": 0.05, "confidence": 0.9}
    change()  # type: ignore[operator]
    if "an image" in offending:
        audited = Monitor.load("monitor/state.json", make_policy()).audited[0]
        write_parquet(Path("scores/day9.parquet"), [{**rows[0], "id": audited.id}])
    with pytest.raises(MonitoringError) as error:
        monitor()
    assert offending in str(error.value)
    assert Path("monitor/state.json").read_bytes() == before


@pytest.mark.parametrize(
    ("pattern", "offending"),
    [("nothing/*.parquet", "nothing"), ("scores.csv", "is not a Parquet file"), ("missing.parquet", "missing")],
)
def test_other_files_are_not_scores(folder: Path, pattern: str, offending: str) -> None:
    Path("scores.csv").write_text("id,label")
    with pytest.raises(MonitoringError, match=offending):
        monitor(pattern)


def test_options_of_a_folder_stay(folder: Path) -> None:
    monitor(alpha=0.01, window=100)
    assert monitor().monitor.alpha == 0.01
    with pytest.raises(MonitoringError, match=r"alpha=0\.05 .*0\.01"):
        monitor(alpha=0.05)
    assert monitor(burn_in=3).status.burn_in == 3, "which changes no number"
    with pytest.raises(MonitoringError, match="burn_in=2000"):
        monitor(burn_in=2000)


def test_labels_are_delivered_again_with_more_lines(folder: Path) -> None:
    first = monitor()
    audits = [audit.id for audit in first.monitor.audited]
    assert Path("monitor/to_review.csv").read_text().splitlines() == ["id,label", *(f"{id_}," for id_ in audits)]
    rejected = next(row["id"] for row in make_rows(300) if not row["accept"] and row["reason"] is None)
    half = len(audits) // 2
    lines = ["id,label", *(f"{id_},cat" for id_ in audits[:half]), f"{rejected},dog", f"{audits[-1]},"]
    Path("labels.csv").write_text("\n".join(lines))
    result = monitor(reviewed="labels.csv")
    assert (result.new_labels, result.ignored_labels) == (half, 1)
    assert result.status.audit is not None
    assert (result.status.audit.labels, result.status.audit.pending) == (half, len(audits) - half)
    assert result.queue is not None
    assert result.queue.read_text().splitlines() == ["id,label", *(f"{id_}," for id_ in audits[half:])]
    Path("labels.csv").write_text("\n".join([*lines[:-1], *(f"{id_},{CLASSES.index('dog')}" for id_ in audits[half:])]))
    result = monitor(reviewed="labels.csv")
    assert (result.new_labels, result.ignored_labels, result.queue) == (len(audits) - half, 1, None)


@pytest.mark.parametrize(
    ("lines", "offending"),
    [
        (["id,label", "nowhere.jpg,cat"], "nowhere.jpg"),
        (["id,class", "day/000000.jpg,cat"], "'label'"),
        (["id,label", "day/000000.jpg,horse"], "'horse'"),
        (["id,label", "day/000000.jpg,cat", "day/000000.jpg,dog"], "two labels"),
    ],
)
def test_labels_that_cannot_be_used_are_errors(folder: Path, lines: list[str], offending: str) -> None:
    Path("labels.csv").write_text("\n".join(lines))
    with pytest.raises(MonitoringError, match=offending):
        monitor(reviewed="labels.csv")


def test_the_list_to_review_is_not_read_where_it_is_written(folder: Path) -> None:
    monitor()
    with pytest.raises(MonitoringError, match="another name"):
        monitor(reviewed="monitor/to_review.csv")


def test_labels_from_spreadsheets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes("\ufefflabel,note,id\r\ncat,,'=1.jpg\r\n dog ,blurred,b.jpg\r\n,later,c.jpg\r\n".encode())
    assert collect_labels(path) == {"=1.jpg": "cat", "b.jpg": "dog"}
    path.write_bytes(b"id,label\n\xff,cat\n")
    with pytest.raises(MonitoringError, match="UTF-8"):
        collect_labels(path)
    with pytest.raises(MonitoringError, match="missing"):
        collect_labels(tmp_path / "missing.csv")


def test_result_has_windows_images_and_files(folder: Path) -> None:
    monitor(window=200)
    content = json.loads(Path("monitor/monitor.json").read_text())
    assert content["format"] == "secondlook monitor result"
    assert content["policy"] == make_policy().checksum
    assert content["options"] == {"alpha": 0.05, "window": 200, "burn_in": 100, "seed": 0}
    assert [window["images"] for window in content["windows"]] == [200, 200, 200, 200, 82]
    assert {"coverage", "confidence", "disagreement", "estimated_risk", "log10_evidence"} <= set(content["windows"][0])
    assert len(content["worst_images"]) == 24
    assert content["alarm"] is False
