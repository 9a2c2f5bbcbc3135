"""`secondlook label`: files of the next images and their labels, the page, resuming, and mistakes in one sentence."""

import csv
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.policies import read_policy
from secondlook.serving import server
from secondlook.serving.service import Service
from secondlook.serving.tokens import Principal
from tests.cli.conftest import Here
from tests.serving.running import wait_for

TERMS = ("--risk", "0.1", "--delta", "0.1")
LABEL = ("label", "--model", "onnx:model.onnx", "--data", "folder:val/", "--views", "identity shift:1,0", *TERMS)
PERSON = Principal("Anna", "reviewer", "browser")


def true_class(id_: str) -> str:
    return id_.split("/")[0]


def read_rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def answer(written: str, filled: str, most: int = 15) -> None:
    """Fill the first rows of a file of the next images."""
    rows = read_rows(written)
    with Path(filled).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows((row["id"], true_class(row["id"])) for row in rows[:most])


def make_plan(**terms: Any) -> sl.LabelingPlan:
    """Return the plan of the command, made in Python."""
    labeled = sl.open_source("folder:val/")
    source = labeled.without_labels()
    source.class_names = labeled.class_names
    preds = sl.collect("onnx:model.onnx", source, "identity shift:1,0", execution=sl.Execution(progress=False))
    copies = [source.ids[index] for index in source.find_duplicates()]
    return sl.LabelingPlan(preds, **{"risk": 0.1, "delta": 0.1, "duplicates": copies, **terms})


def finish(plan: sl.LabelingPlan) -> sl.LabelingPlan:
    while ids := plan.next_ids(1):
        plan.add({id_: int(true_class(id_)) for id_ in ids})
    return plan


def test_files_of_next_images_lead_to_the_policy_of_the_plan(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, given = make_plan(), list[str]()
    for package in ("fastapi", "sqlalchemy", "uvicorn"):
        monkeypatch.setitem(sys.modules, package, None)  # only the page needs them
    for round_ in range(20):
        told = here.ok(*LABEL, *given, "--next", f"{round_}.csv", "--json").json
        progress = plan.progress
        assert told["progress"]["labels"] == progress.labels
        assert (told["progress"]["accepted"], told["progress"]["finished"]) == (progress.accepted, progress.finished)
        assert (told["policy"] is None) == (not progress.accepted) == (not Path("policy.json").exists())
        if progress.accepted:
            assert read_policy("policy.json").decides_like(plan.policy)
        if progress.finished:
            break
        rows = read_rows(f"{round_}.csv")
        assert [row["id"] for row in rows] == list(plan.next_ids(max(100, progress.next_step or 0)))
        assert Path(rows[0]["file"]).is_file()
        assert (rows[0]["label"], float(rows[0]["confidence"]) > 0.9) == ("", True)
        answer(f"{round_}.csv", f"{round_}-done.csv")
        given += ["--labels", f"{round_}-done.csv"]
        plan.add({row["id"]: int(true_class(row["id"])) for row in rows[:15]})
    assert plan.progress.finished
    assert plan.progress.accepted > 0
    assert Path(f"{round_}.csv").read_text().count("\n") == 1
    here.ok("score", "--policy", "policy.json", "--data", "folder:new/", "--out", "scores.csv")


def test_labels_come_back_from_label_studio(here: Here) -> None:
    here.ok(*LABEL, "--max-labels", "150", "--next", "tasks.json")
    tasks = json.loads(Path("tasks.json").read_text())
    assert "predictions" not in tasks[0] or not tasks[0]["predictions"]
    answers = ["none of these", "cannot tell", "bad image"]
    for text in ("7", *answers):
        assert f'<Choice value="{text}"/>' in Path("tasks-config.xml").read_text()
    for place, task in enumerate(tasks[:21]):
        found = true_class(task["data"]["id"]) if place >= len(answers) else answers[place]
        choice = {"type": "choices", "value": {"choices": [found]}}
        task["annotations"] = [{"result": [choice]}]
    Path("export.json").write_text(json.dumps(tasks))
    words = ("--max-labels", "150", "--labels", "export.json", "--next", "more.json", "--json")
    told = here.ok(*LABEL, *words).json["progress"]
    assert (told["labels"], told["errors"]) == (21, len(answers))
    with Path("more.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), (tasks[0]["data"]["id"], "bad image")])
    here.refuse(
        *LABEL, *words, "--labels", "more.csv", "--force", told=["more.csv", tasks[0]["data"]["id"], "different label"]
    )


def write_labeled_archive(class_names: tuple[str, ...]) -> None:
    """Write images of val/ as an archive whose labels have names."""
    source = sl.open_source("folder:val/?limit=100")
    np.savez("named.npz", images=source.stack(), labels=np.arange(100) % len(class_names), class_names=class_names)


@pytest.mark.parametrize("n_names", [10, 3])
def test_class_names_of_the_data_are_used_if_they_fit_the_classifier(here: Here, n_names: int) -> None:
    names = tuple(f"digit {index}" for index in range(n_names))
    write_labeled_archive(names)
    here.ok(*LABEL, "--data", "npz:named.npz", "--max-labels", "60", "--next", "tasks.json")
    config = Path("tasks-config.xml").read_text()
    for index in range(10):
        text = names[index] if n_names == 10 else str(index)
        assert f'<Choice value="{text}"/>' in config


def test_page_resumes_after_an_interruption_and_stops_when_finished(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    patience = [30, 10_000]

    def label_images(service: Service, *, ready: Any, **_others: Any) -> None:
        """Label as a person at the page would, who is interrupted."""
        assert service.labeling is not None
        ready("http://127.0.0.1:1")
        for _ in range(patience.pop(0)):
            items = service.reviews.lease(PERSON, 1)
            if not items:
                return
            service.reviews.label(items[0].number, int(true_class(items[0].id)), PERSON)
            service.labeling.update()

    monkeypatch.setattr(server, "run_server", label_images)
    command = (*LABEL, "--max-labels", "60", "--work-dir", "work")
    first = here.ok(*command, "--json")
    assert (first.json["progress"]["labels"], first.json["progress"]["finished"]) == (30, False)
    assert "http://127.0.0.1:1/review" in first.err
    wait_for(lambda: opened == ["http://127.0.0.1:1/review"])
    before = read_policy("policy.json")
    assert before.decides_like(finish(make_plan(max_labels=60)).policy) is False
    second = here.ok(*command, "--no-open")
    assert "secondlook score --policy policy.json" in second.out
    assert read_policy("policy.json").decides_like(finish(make_plan(max_labels=60)).policy)
    assert len(opened) == 1
    assert here.ok(*command, "--quiet").out == "", "nothing is left to do, so no page is opened"
    here.refuse(*command, "--risk", "0.2", told="--risk (0.1, now 0.2)")
    here.refuse(*command, "--data", "folder:new/", told="--data")


def test_nothing_is_certified_where_predictions_are_wrong(here: Here) -> None:
    here.ok(*LABEL, "--next", "first.csv")
    with Path("wrong.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows((row["id"], (int(row["predicted"]) + 1) % 10) for row in read_rows("first.csv"))
    done = here(*LABEL, "--labels", "wrong.csv", "--next", "second.csv", "--json")
    assert (done.code, done.json["progress"]["finished"], done.json["policy"]) == (1, True, None)
    assert not Path("policy.json").exists()


def test_policy_of_labels_that_were_corrected_is_replaced_or_removed(here: Here) -> None:
    here.ok(*LABEL, "--next", "first.csv")
    answer("first.csv", "labels.csv", 60)
    here.ok(*LABEL, "--labels", "labels.csv", "--next", "second.csv")
    assert read_policy("policy.json").certified
    same = ("--labels", "labels.csv", "--next", "third.csv")
    here.refuse(*LABEL, "--risk", "0.2", *same, told="--risk (0.1, now 0.2)")
    here.ok(*LABEL, "--next", "third.csv")
    assert not Path("policy.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--next", "next.txt"], "next.txt"),
        (["--next", "old.csv"], "--force"),
        (["--next", "next.csv", "--port", "80"], "--port"),
        (["--next", "next.csv", "--labels", "none.csv"], "none.csv"),
        (["--next", "next.csv", "--labels", "unknown.csv"], "elsewhere.png"),
        (["--next", "next.csv", "--labels", "text.csv"], ["text.csv", "line 2", "eleven"]),
        (["--next", "next.csv", "--labels", "one.csv", "--labels", "two.csv"], ["two.csv", "different label"]),
        (["--next", "next.csv", "--out", "other.json"], ["other.json", "--force"]),
        (["--next", "next.csv", "--out", "val"], "folder"),
        (["--next", "next.csv", "--risk", "0.0001"], ["--max-labels", "--risk"]),
        (["--next", "next.csv", "--risk", "2"], "--risk"),
        (["--next", "next.csv", "--method", "learned"], "learned"),
        (["--host", "0.0.0.0", "--no-open"], "--host"),
    ],
)
def test_mistakes_are_one_sentence(here: Here, words: list[str], told: str | list[str]) -> None:
    first = sorted(f"{file.parent.name}/{file.name}" for file in Path("val").glob("*/*.png"))[0]
    files = {"old": "", "unknown": "elsewhere.png,1\n", "text": f"{first},eleven\n"}
    files |= {"one": f"{first},1\n", "two": f"{first},2\n"}
    for name, rows in files.items():
        Path(f"{name}.csv").write_text(f"id,label\n{rows}")
    Path("other.json").write_text("{}")
    here.refuse(*LABEL, *words, told=told)
    assert not Path("policy.json").exists()


def test_page_needs_its_extra(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    here.refuse(*LABEL, told="secondlook[serve]")


@pytest.mark.outside
@pytest.mark.posix
def test_killed_at_any_moment_it_loses_no_label(here: Here, tmp_path: Path) -> None:
    words = [str(Path(sys.executable).with_name("secondlook")), *LABEL, "--no-open", "--port", "0", "--json"]
    given: dict[str, int] = {}
    code, out, err = -1, "", ""

    def post(url: str, path: str, **body: Any) -> Any:
        content = json.dumps(body).encode()
        request = urllib.request.Request(f"{url}/v1/review/{path}", content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    for patience in (1, 7, 23, 10_000):
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            url = process.stderr.readline().partition(" at ")[2].partition("/review")[0]
            for _ in range(patience):
                items = post(url, "lease", count=1)["items"]
                if not items:
                    break
                (item,) = items
                assert item["id"] not in given
                given[item["id"]] = int(true_class(item["id"]))
                post(url, f"{item['number']}/label", label=given[item["id"]])
            else:
                os.kill(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=120)
        code = process.returncode
    assert code == 0, err
    expected = finish(make_plan())
    assert given == expected.labels
    assert json.loads(out)["progress"]["labels"] == len(given)
    assert read_policy("policy.json").decides_like(expected.policy)
