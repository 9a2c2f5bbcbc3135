"""The page and the files next to it: well-formed, self-contained, small, escaped, complete and reproducible."""

import base64
import hashlib
import html
import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.errors import DecisionError, ReportError
from secondlook.estimators import confidence
from secondlook.evaluation import evaluate
from secondlook.policies import certify
from secondlook.predictions import Predictions
from secondlook.report import write_report
from secondlook.tables import unescape_formula
from secondlook.views import apply_view
from tests.report.conftest import CLASSES, Report, Write, make_predictions, read_image

VOID = {"meta", "link", "input", "img", "br", "hr"}


class PageParser(HTMLParser):
    """Collects ids, references and headings, and fails if an element that is not open is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.levels: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.levels.append(int(tag[1]))
        for name, value in attrs:
            text = value or ""
            if name == "id":
                self.ids.append(text)
            if name in ("for", "aria-labelledby", "aria-describedby") or (name == "href" and text.startswith("#")):
                self.references.append(text.removeprefix("#"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def test_page_is_well_formed_and_self_contained(report: Report) -> None:
    parser = PageParser()
    parser.feed(report.text)
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    assert set(parser.references) <= set(parser.ids)
    assert parser.levels[0] == 1
    assert parser.levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(parser.levels, parser.levels[1:], strict=False))
    text = report.path.read_text("utf-8")
    # The only URL of the page names a namespace, which is never fetched.
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", text)
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    assert "default-src &#39;none&#39;; img-src data:" in text
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in text


def make_random(n_images: int, n_views: int, n_classes: int, gain: float = 0.0) -> Predictions:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n_images)
    logits = rng.normal(size=(n_images, n_views, n_classes)).astype(np.float32)
    logits[np.arange(n_images), 0, labels] += gain
    return Predictions(logits=logits, views=["identity", "hflip"][:n_views], labels=labels)


def test_page_of_many_images_or_classes_is_small(write: Write) -> None:
    assert write(make_random(10_000, 2, 3)).path.stat().st_size < 1_000_000
    report = write(make_random(3000, 1, 1000, gain=4.0), methods=None)
    assert report.path.stat().st_size < 400_000
    assert report.text.count("<td") < 200, "no table grows with the number of classes"
    assert len(report.data["methods"][0]["cells"]) == 3000


def test_texts_cannot_inject_markup_or_formulas(write: Write, preds: Predictions) -> None:
    evil = '=</script><script>alert("x")</script>'
    hostile = Predictions(
        probabilities=preds.probabilities,
        views=preds.views,
        labels=preds.labels,
        class_names=[f"{sign}{evil}{place}" for place, sign in enumerate("=+-@")],
        ids=[f"{evil}{place}.png" for place in range(600)],
        skipped=[(evil, evil)],
    )
    texts: dict[str, Any] = {"title": evil, "facts": {evil: f"@{evil}"}, "notes": (evil,), "command": evil}
    report = write(hostile, image=read_image, artifacts=True, **texts)
    text = report.text
    assert "<script>alert" not in text
    assert len(re.findall(r"<script\b", text)) == 2
    assert "&lt;/script&gt;&lt;script&gt;alert(&#34;x&#34;)" in text
    escaped = 0
    for path in report.files.glob("*.csv"):
        for cell in [cell for row in report.rows(path.stem) for cell in row.values()]:
            escaped += cell.startswith("'")
            assert not cell.startswith(("=", "+", "@", "\t", "\r"))
            assert not cell.startswith("-") or np.isfinite(float(cell)), "only numbers start with a minus sign"
    assert escaped > 10
    classes = {unescape_formula(row["class"]) for row in report.rows("classes")}
    assert classes
    assert classes <= set(hostile.class_names or ())


def test_provenance_and_methods_with_options_are_shown(write: Write, preds: Predictions) -> None:
    content: dict[str, Any] = {"probabilities": preds.probabilities, "views": preds.views, "labels": preds.labels}
    labeled = Predictions(**content, skipped=[("a/b.png", "truncated")])
    shown: dict[str, Any] = {"facts": {"classifier": "onnx:m.onnx"}, "notes": ["the lamp was new"]}
    report = write(labeled, methods=["msr"], command="secondlook report run/", artifacts=True, **shown)
    for expected in ("onnx:m.onnx", "the lamp was new", "a/b.png", "truncated", "secondlook report run/", "r-files"):
        assert expected in report.text
    texts = ["msr", "mean?views=identity hflip&temperature=2", "view:hflip?temperature=1.5", "mean?temperature=fit"]
    with_options = write(preds, methods=texts, artifacts=True)
    assert [method["name"] for method in with_options.data["methods"]] == texts
    for attribute in ("value", "data-method"):
        assert f'{attribute}="mean?views=identity hflip&amp;temperature=2"' in with_options.text
    assert {row["method"] for row in with_options.rows("methods")} == set(texts)


def test_files_are_complete_and_reproducible(preds: Predictions, tmp_path: Path) -> None:
    first, second = (
        write_report(preds, tmp_path / name / "r.html", title="t", image=read_image, methods=["msr", "mean"])
        for name in "ab"
    )
    tables = "facts methods risk-coverage risk-coverage-bands operating-points histograms reliability classes views"
    others = "adaptive-looking confusions galleries unknown unknown-accepted skipped"
    plots = "risk-coverage adaptive-looking histograms reliability classes views"
    expected = {f"{name}.csv" for name in [*tables.split(), *others.split()]}
    expected |= {f"{name}.{suffix}" for name in plots.split() for suffix in ("png", "svg")}
    files = list((first.parent / "r-files").iterdir())
    assert {path.name for path in files} == expected
    for path in [first, *files]:
        content = path.read_bytes()
        assert content == (second.parent / path.relative_to(first.parent)).read_bytes(), path.name
        assert {".png": b"\x89PNG", ".svg": b"<svg"}.get(path.suffix, b"") in content


def read_numbered_image(index: int) -> Array:
    """Return one plain color for each index."""
    return np.full((8, 8, 3), [index % 256, index // 256, 100], dtype=np.uint8)


def test_report_is_about_judged_images(write: Write, preds: Predictions) -> None:
    """All tables and all data of the page equal those of a report about the judged images alone, except the indices."""
    options: dict[str, Any] = {"warnings": (), "artifacts": True}
    report = write(preds, tuning=np.arange(200), image=read_numbered_image, **options)
    judged = preds.select(images=np.arange(200, 600))
    alone = write(judged, "alone.html", image=lambda index: read_numbered_image(index + 200), **options)
    data, expected = report.data, alone.data
    assert data["pictures"] == expected["pictures"], "with the same pixels"
    assert str(data) == str(expected)
    for table in alone.files.glob("*.csv"):
        if table.stem not in ("facts", "galleries"):
            assert (report.files / table.name).read_bytes() == table.read_bytes(), table.name
    indices, own = ([int(row["index"]) for row in one.rows("galleries")] for one in (report, alone))
    assert indices == [index + 200 for index in own], "positions among all images, as image= takes them"
    assert "<dt>Tuning images</dt><dd>200</dd>" in report.text
    assert "the other 400" in report.text
    assert "200 of 600 images" in report.rows("facts", fact="tuning")[0]["value"]
    assert "Tuning images" not in alone.text
    assert "used for tuning" not in alone.text


def test_methods_are_fitted_on_tuning_images(write: Write, preds: Predictions) -> None:
    """The page has the policy that `certify` finds with the same tuning images."""
    options: dict[str, Any] = {"risk": 0.2, "delta": 0.2, "tuning": np.arange(0, 600, 2)}
    rule = certify(preds, "learned", **options)
    report = write(preds, methods=None, policy=rule, **options)
    data = report.data
    assert [method["name"] for method in data["methods"]] == ["msr", "mean", "bootstrap", "blend", "learned"]
    assert rule.calibration is not None
    assert (data["images"], data["method"], data["policy"]["method"]) == (300, "learned", "learned")
    assert (data["policy"]["accepted"], data["policy"]["errors"]) == (
        rule.calibration.accepted,
        rule.calibration.errors,
    )
    assert "learned: intercept=" in report.text, "what was fitted is told"


def test_warnings_are_linked_from_the_summary_and_advice_is_in_the_appendix(write: Write, preds: Predictions) -> None:
    text = write(preds, resamples=20, warnings=("view 'x' & more is harmful.",)).text
    sentence = evaluate(preds, ["mean"], ["auroc"], resamples=20).recommendation
    assert sentence is not None
    assert 'href="#warnings">1 warning<' in text[: text.index('id="appendix"')]
    assert text.index("view &#39;x&#39; &amp; more is harmful.") < text.index('id="operate"')
    assert text.index('id="methods"') < text.index(html.escape(sentence).replace("&#x27;", "&#39;"))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    logits = rng.normal(size=(300, 2, 4)) + 6 * np.eye(4)[np.stack([labels, (labels + 1) % 4], axis=1)]
    harmed = Predictions(logits=logits, views="identity vflip", labels=labels)
    (warning,) = re.findall(r'<p class="warning".*?</p>', write(harmed).text)
    assert "vflip" in warning
    assert 'class="warning"' not in write(harmed, warnings=()).text


@pytest.mark.parametrize("n_images", [1, 2, 30])
@pytest.mark.parametrize("kind", ["no errors", "all errors", "one error"])
def test_edge_cases_are_reported(preds: Predictions, tmp_path: Path, n_images: int, kind: str) -> None:
    wrong = np.full(n_images, kind == "all errors")
    wrong[0] |= kind == "one error"
    values = np.linspace(0.5, 0.9, n_images)
    plots = n_images == 1  # drawing takes most of the time
    few = make_predictions(values, values, wrong)
    path = write_report(few, tmp_path / "r.html", title="t", image=read_image, artifacts=plots)
    assert ("A second look" in path.read_text("utf-8")) == (0 < wrong.sum() < n_images)


@pytest.mark.parametrize(
    "options",
    [
        {"predict_from": "views"},
        {"top_k": 2},
        {"predict_from": "views", "top_k": 2},
        {"methods": ["zero", "view:hflip"]},
    ],
)
def test_other_predictions_and_methods(write: Write, options: dict[str, Any]) -> None:
    report = write(make_random(80, 2, 4), image=read_image, **{"methods": None, **options})
    assert "class 3" in report.text, "classes without names are numbered"
    members = [make_random(80, 2, 4)] * 2
    ensemble = Predictions(members=members, views=members[0].views)
    assert "× 2 members" in write(ensemble, **{"methods": None, **options}).text


def test_missing_labels_and_unwritable_paths_are_rejected(write: Write, preds: Predictions, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="labels="):
        write(Predictions(probabilities=preds.probabilities, views=preds.views))
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "r.html").mkdir()
    few = preds.select(images=np.arange(40))
    for name, told in (("file/r.html", str(tmp_path / "file" / "r.html")), ("r.html", "Is a directory")):
        with pytest.raises(ReportError, match=re.escape(told)):
            write(few, name, methods=["msr"])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": []}, "methods="),
        *(({"risk": risk}, f"risk={risk}") for risk in (0.0, 1.0, 1.5, -0.1, math.nan)),
        ({"image": lambda index: None}, "NoneType"),
        ({"image": lambda index: np.zeros((4, 4))}, "float64 [4, 4]"),
        ({"name": "folder"}, "folder"),
    ],
)
def test_invalid_arguments_fail(write: Write, preds: Predictions, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ReportError, match=re.escape(message)):
        write(preds, **{"methods": ["msr"], **options})


def test_invalid_delta_fails(write: Write, preds: Predictions) -> None:
    with pytest.raises(DecisionError, match=re.escape("delta=0.0")):
        write(preds, methods=["msr"], delta=0.0)


def open_picture(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/webp;base64,"))))


def test_pictures_have_the_prediction_for_every_view(preds: Predictions, report: Report) -> None:
    data = report.data
    assert (data["classes"], data["views"]) == (list(CLASSES), [view.describe() for view in preds.views])
    leading, before, after = preds.probabilities.argmax(axis=2), confidence(preds, "msr"), confidence(preds, "blend")
    assert [one["id"] for one in data["pictures"]] == [row["id"] for row in report.rows("galleries")]
    for one in data["pictures"]:
        index = preds.ids.index(one["id"])
        assert one["correct"] == bool(preds.correct()[index])
        assert (one["label"], one["predicted"]) == (preds.labels[index], [leading[index, 0]])
        assert one["view_predicted"] == leading[index].tolist()
        assert one["view_probabilities"] == pytest.approx(preds.probabilities[index].max(axis=1), abs=1e-4)
        assert one["confidences"] == [confidence(preds, method["name"])[index] for method in data["methods"]]
        assert one["rank_change"] == (before > before[index]).sum() - (after > after[index]).sum()
        assert all(one[name].startswith("data:image/webp;base64,") for name in ("picture", "sheet"))


@pytest.mark.parametrize("views", ["identity", "identity hflip shift:1,0"], ids=["one view", "more"])
def test_errors_of_both_ends_and_rejected_correct_ones_are_chosen(write: Write, preds: Predictions, views: str) -> None:
    selected = preds.select(views=views)
    chosen = [int(row["index"]) for row in write(selected, risk=0.0001, artifacts=True).rows("galleries")]
    assert len(set(chosen)) == len(chosen) == 200
    correct = selected.correct()
    before, after = (confidence(selected, name) for name in ("msr", "mean"))
    by_confidence = np.argsort(after, kind="stable")
    errors, others = (by_confidence[kept[by_confidence]].tolist() for kept in (~correct, correct))
    assert {*errors[:33], *errors[-33:], *others[:33]} <= set(chosen)
    assert chosen[:2] == [errors[-1], errors[0]], "the most interesting come first, if a page has little room"
    if views != "identity":
        order = [np.searchsorted(np.sort(-values), -values) for values in (before, after)]
        changes = np.abs(order[0] - order[1])
        assert set(np.argsort(-changes, kind="stable")[:33].tolist()) <= set(chosen)


def test_equal_confidences_keep_the_order_and_few_images_are_all_chosen(write: Write, preds: Predictions) -> None:
    half = np.full(600, 0.5)
    constant = make_predictions(half, half, ~preds.correct())
    chosen = [int(row["index"]) for row in write(constant, artifacts=True).rows("galleries")]
    errors = np.flatnonzero(~preds.correct()).tolist()
    found = [index for index in chosen if not preds.correct()[index]]
    assert found == errors[: len(found)]
    few = write(preds.select(images=np.arange(50)), methods=["msr"], artifacts=True)
    assert sorted(int(row["index"]) for row in few.rows("galleries")) == list(range(50))


def test_sheet_holds_every_view_in_rows(write: Write, preds: Predictions) -> None:
    pixels = np.kron(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16, np.ones((8, 8), dtype=np.uint8))[..., None]
    few = preds.select(images=np.arange(3))
    drawn = write(few, image=lambda _: pixels).data["pictures"]
    sheet = np.asarray(open_picture(drawn[0]["sheet"]).convert("L"), dtype=np.int64)
    assert sheet.shape == (32, 3 * 32)
    for place, view in enumerate(preds.views):
        expected = apply_view(pixels[None], view)[0, ..., 0].astype(np.int64)
        assert np.abs(sheet[:, 32 * place : 32 * place + 32] - expected).mean() < 12, "up to the loss of compression"
    real = write(few, image=lambda _: (pixels / 255).astype(np.float32)).data["pictures"]
    assert real == drawn, "float32 images give the same pictures"
    levels = [round(1 - place / 20, 2) for place in range(18)]
    views = ["identity", *(f"brightness:{level:g}" for level in levels[1:])]
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), (20, 18)).astype(np.float32)
    many = Predictions(probabilities=probabilities, views=views, labels=np.arange(20) % 3)
    picture = write(many, image=lambda _: np.full((32, 48, 1), 200, dtype=np.uint8)).data["pictures"][0]
    sheet = np.asarray(open_picture(picture["sheet"]).convert("L"), dtype=np.int64)
    assert sheet.shape == (2 * 32, 16 * 48)
    tiles = sheet.reshape(2, 32, 16, 48).mean(axis=(1, 3)).ravel()
    assert tiles == pytest.approx([*(200 * level for level in levels), *[0] * 14], abs=3)


def test_large_pictures_are_fewer(write: Write, preds: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    monkeypatch.setattr("secondlook.report.page.MAX_BYTES", 200_000)
    drawn = write(preds, image=lambda _: noise).data["pictures"]
    assert 0 < len(drawn) < 20
    assert sum(len(one["picture"]) + len(one["sheet"]) for one in drawn) <= 200_000
    assert max(open_picture(drawn[0]["picture"]).size) == 160
