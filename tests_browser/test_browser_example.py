"""The example for browsers: ONNX Runtime Web in Chromium decides as the library does; files, layout, hostile texts."""

import functools
import hashlib
import io
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, FilePayload, Page, expect

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Ensemble
from secondlook.views import apply_view
from tests.cli.conftest import write_color_model
from tests.policy_maker import attach, limit_familiarity
from tests.serving.running import VIEWS, Digits, make_digits, make_png
from tests_browser.test_page import CONTRAST

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "browser"
CIFAR10 = ROOT.parent / "shared" / "cifar10"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=alert(1)>"
TEXTS = (
    *(".subtitle", "#word", "#label", "#advice", ".confidence", "#needed", ".facts dt", ".facts dd", "#guarantee"),
    *("#likely li", "#votes", "#views .name", "#views small", "#choose", "#replace", "#note", "summary"),
)


@pytest.fixture(scope="module")
def runtime() -> Path:
    """Return a folder with ONNX Runtime Web, installed by npm once for each version of the example's lock file."""
    lock = EXAMPLE / "package-lock.json"
    folder = ROOT / ".venv-npm" / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    if not (folder / "ready").exists():
        if shutil.which("npm") is None:
            pytest.skip("needs npm, to install ONNX Runtime Web")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", lock.name, ".npmrc"):
            shutil.copy(EXAMPLE / name, folder)
        done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"npm could not install ONNX Runtime Web: {done.stderr[-300:]}")
        (folder / "ready").touch()
    return folder / "node_modules"


@dataclass(frozen=True)
class Site:
    """The example on a loopback server; files can be added to its folder."""

    url: str
    folder: Path

    def export(self, policy: Path, name: str, **options: Any) -> str:
        """Export a policy into the folder, and return the address of the page with this decider."""
        sl.export_onnx(policy, self.folder / name, **options)
        return f"{self.url}/?model={name}"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.fixture(scope="module")
def site(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name in ("index.html", "style.css", "app.js", "decider.js", "metadata.js", "pictures.js"):
        shutil.copy(EXAMPLE / name, folder)
    (folder / "samples.json").write_text("[]")
    (folder / "node_modules").symlink_to(runtime)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Site(f"http://127.0.0.1:{server.server_port}", folder)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def digits_page(site: Site, digits: Digits) -> str:
    return site.export(digits.policy, "digits.onnx")


@contextmanager
def open_example(
    browser: Browser, address: str, *allowed: str, context: BrowserContext | None = None
) -> Iterator[Page]:
    """Open the page; messages of the console, but for allowed ones, and requests to elsewhere fail the test."""
    own = context or browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    page = own.new_page()
    faults: list[str] = []
    origin = address.split("?")[0]
    local = (origin, f"blob:{origin}", "data:")
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(local) else faults.append(request.url))
    page.goto(address)
    page.locator("body:not(.busy) #status").wait_for(timeout=60_000)
    yield page
    own.close()
    assert [fault for fault in faults if not fault.startswith(allowed or "-")] == []


def test_unfamiliar_and_unsure_pictures_are_told_apart(
    browser: Browser, site: Site, digits: Digits, tmp_path: Path
) -> None:
    images = np.stack([read_png(file) for file in digits.files[:40]])
    policy = sl.load_policy(digits.policy)
    preds = sl.collect(f"onnx:{digits.policy.with_name('digits.onnx')}", images, list(policy.views))
    raised = policy.replace(threshold=float(np.median(policy.confidence(preds))))
    limit_familiarity(raised, preds, 0.2).save(tmp_path / "policy.json")
    shutil.copy(digits.policy.with_name("digits.onnx"), tmp_path)
    policy = sl.load_policy(tmp_path / "policy.json")
    with open_example(browser, site.export(tmp_path / "policy.json", "familiar.onnx")) as page:
        reasons = set()
        for number, image in enumerate(images):
            decide(page, digits.files[number], f"{number}.png")
            reason = policy.decide(image).rejection
            told = page.locator("#advice").inner_text().split(":")[0].lower()
            assert told == (reason or "the prediction can be accepted.")
            reasons.add(reason)
        assert reasons == {None, "unsure", "unfamiliar"}


@dataclass(frozen=True)
class Shown:
    """A decision as the page shows it."""

    label: str
    confidence: float
    accept: bool
    looks: int


def decide(page: Page, file: bytes, name: str = "picture.png", kind: str = "image/png") -> Shown:
    """Choose a picture, and return the decision."""
    page.set_input_files("#file", FilePayload(name=name, mimeType=kind, buffer=file))
    return read_decision(page, name)


def read_decision(page: Page, name: str) -> Shown:
    page.locator(f"body:not(.busy) #picture[alt='{name}']").wait_for(timeout=60_000)
    texts = {id_: page.get_attribute(f"#{id_}", "value") or "" for id_ in ("class", "confidence", "accept", "looks")}
    word = page.locator("#accept").inner_text()
    assert word == {"true": "ACCEPT", "false": "REVIEW"}[texts["accept"]]
    return Shown(texts["class"], float(texts["confidence"]), word == "ACCEPT", int(texts["looks"]))


def check_decisions(page: Page, policy: Path, files: Sequence[bytes], images: Sequence[Array]) -> None:
    """Compare the decisions of the page about files with those of the library about their pixels."""
    loaded = sl.load_policy(policy)
    outcomes = set()
    for number, (file, image) in enumerate(zip(files, images, strict=True)):
        shown, expected = decide(page, file, f"{number}.png"), loaded.decide(image)
        assert shown.label == str(expected.label)
        assert shown.confidence == pytest.approx(expected.confidence, abs=1e-5)
        assert (shown.accept, shown.looks) == (expected.accept, expected.looks)
        assert page.locator("#class").inner_text() == expected.class_name
        outcomes.add(expected.accept)
    assert outcomes == {True, False}, "some are accepted, and some are not"


def read_png(file: bytes) -> Array:
    """Return the pixels of a PNG file. uint8 [H, W, 1 or 3]"""
    pixels = np.asarray(Image.open(io.BytesIO(file)))
    return pixels if pixels.ndim == 3 else pixels[..., None]


@pytest.mark.parametrize("policy", ["policy.json", "adaptive.json"])
@pytest.mark.parametrize("pixels", ["uint8", "float32"])
def test_digits_are_decided_as_by_the_library(
    browser: Browser, site: Site, digits: Digits, policy: str, pixels: str
) -> None:
    path = digits.policy.with_name(policy)
    files = digits.files[:40]
    with open_example(browser, site.export(path, f"{pixels}-{path.stem}.onnx", pixels=pixels)) as page:
        check_decisions(page, path, files, [read_png(file) for file in files])
        agreeing = page.locator("#votes").inner_text()
        tiles = page.locator("#views li")
        assert tiles.count() == 5
        taken = int(page.locator("#looks").get_attribute("value") or "")
        assert page.locator("#views .not-taken").count() == 5 - taken
        assert agreeing.startswith(f"{taken - page.locator('#views .differs').count()} of {taken} ")


def make_policy(folder: Path, classifier: sl.Classifier, images: Array, views: str, **options: Any) -> Path:
    """Write a policy that accepts half of the given images, and return its path."""
    preds = sl.collect(classifier, images, views, execution=sl.Execution(progress=False))
    names = options.pop("class_names", tuple(f"kind {number}" for number in range(preds.n_classes)))
    policy = sl.Policy(threshold=float(np.median(sl.confidence(preds, "mean"))), method="mean", **options)
    attach(policy, classifier=classifier, views=preds.views.texts, class_names=names).save(folder / "policy.json")
    return folder / "policy.json"


def test_cifar10_is_decided_as_by_the_library(browser: Browser, site: Site, tmp_path: Path) -> None:
    if not CIFAR10.is_dir():
        pytest.skip("needs ../shared/cifar10")
    with np.load(CIFAR10 / "test.npz") as test:
        images = test["images"][:100]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    classifier = sl.load_classifier(f"onnx:{CIFAR10 / 'resnet20.onnx'}", output="logits", mean=mean, std=std)
    policy = make_policy(tmp_path, classifier, images, "cifar10")
    with open_example(browser, site.export(policy, "cifar10.onnx")) as page:
        check_decisions(page, policy, [make_png(image) for image in images], images)


def test_color_becomes_gray_as_in_pillow(browser: Browser, digits: Digits, digits_page: str) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(5)]
    policy = sl.load_policy(digits.policy)
    with open_example(browser, digits_page) as page:
        for number, image in enumerate(images):
            expected = policy.decide(np.asarray(Image.fromarray(image).convert("L"))[..., None])
            assert decide(page, make_png(image), f"{number}.png").confidence == pytest.approx(
                expected.confidence, abs=1e-5
            )


def test_tiles_show_what_each_look_predicted(browser: Browser, site: Site, digits: Digits, tmp_path: Path) -> None:
    model = f"onnx:{digits.policy.with_name('digits.onnx')}"
    ensemble = Ensemble([sl.load_classifier(model), sl.load_classifier(model, scale=0.002)])
    images = np.stack([read_png(file) for file in digits.files[:9]])
    policy = make_policy(tmp_path, ensemble, images, VIEWS)
    probabilities = sl.collect(ensemble, images, VIEWS, execution=sl.Execution(progress=False)).probabilities
    with open_example(browser, site.export(policy, "ensemble.onnx", classifier=ensemble)) as page:
        for number, of_views in enumerate(probabilities):
            decide(page, digits.files[number], f"{number}.png")
            expected = [
                f"kind {one.argmax()}\n{100 * one.max():.1f}\u00a0%\n{text}"
                for one, text in zip(of_views.astype(float), VIEWS.split(), strict=True)
            ]
            assert page.locator("#views li").all_inner_texts() == expected


READ_VIEWS = """canvases => canvases.map(canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [canvas.height, canvas.width, Array.from(data)];
})"""


@pytest.mark.parametrize("pixels", ["uint8", "float32"])
def test_views_are_shown_as_pictures(browser: Browser, site: Site, resizing_policy: Path, pixels: str) -> None:
    photo = make_photo(20, 20, 0)
    views, fitted = sl.load_policy(resizing_policy).views, photo[2:18, 2:18]
    with open_example(browser, site.export(resizing_policy, f"views-{pixels}.onnx", pixels=pixels)) as page:
        decide(page, make_png(photo))
        shown = page.locator("#views canvas").evaluate_all(READ_VIEWS)
        assert len(shown) == len(views) == 4
        for view, (height, width, values) in zip(views, shown, strict=True):
            expected = apply_view(fitted[None], view)[0].astype(int)
            found = np.array(values).reshape(height, width, 4)
            np.testing.assert_allclose(found[..., :3], expected, atol=1, err_msg=view)
            assert (found[..., 3] == 255).all()


def test_samples_are_offered_and_work_offline(browser: Browser, site: Site, digits: Digits, digits_page: str) -> None:
    names = [f"samples/{number}.png" for number in range(3)]
    (site.folder / "samples").mkdir()
    for name, file in zip(names, digits.files, strict=False):
        (site.folder / name).write_bytes(file)
    with open_example(browser, digits_page) as page:
        expect(page.locator("#samples")).to_be_hidden()
    (site.folder / "samples.json").write_text(json.dumps(names))
    with open_example(browser, digits_page) as page:
        samples = page.get_by_role("button", name="sample")
        expect(samples).to_have_count(3)
        samples.nth(1).click()
        chosen = read_decision(page, names[1])
        assert chosen == decide(page, digits.files[1], "same.png")
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "browser-samples.png", full_page=True)
    (site.folder / "samples.json").write_text("[]")


@pytest.fixture(scope="module")
def resizing_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose classifier resizes color images of any size, with a hostile class name."""
    folder = tmp_path_factory.mktemp("resizing")
    write_color_model(folder / "model.onnx")
    classifier = sl.load_classifier(f"onnx:{folder / 'model.onnx'}", output="logits", resize=20, crop=16)
    images = np.stack([make_photo(24, 24, seed) for seed in range(20)])
    names = (HOSTILE, *("a rather long name of a class, with a comma",) * 9)
    return make_policy(folder, classifier, images, "identity, hflip, gamma:0.7, rotate:5", class_names=names, top_k=2)


def make_photo(width: int, height: int, seed: int) -> Array:
    """Return smooth colors. uint8 [height, width, 3]"""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def test_pictures_of_any_size_are_resized_by_the_decider(browser: Browser, site: Site, resizing_policy: Path) -> None:
    policy = sl.load_policy(resizing_policy)
    with open_example(browser, site.export(resizing_policy, "resizing.onnx")) as page:
        for number, size in enumerate([(20, 20), (33, 47), (300, 200), (16, 90), (5, 7)]):
            photo = make_photo(*size, number)
            shown, expected = decide(page, make_png(photo), f"{number}.png"), policy.decide(photo)
            assert expected.labels is not None
            assert shown.label == " ".join(map(str, expected.labels))
            assert shown.confidence == pytest.approx(expected.confidence, abs=1e-3)
            expect(page.locator("#note")).to_be_hidden()
        decide(page, make_png(make_photo(3000, 2000, 0)), "large.png")
        expect(page.locator("#note")).to_contain_text("scaled it from 3000 × 2000 to")


def test_pictures_are_cropped_and_turned_upright(browser: Browser, digits_page: str) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(make_photo(80, 40, 0)).save(file, format="JPEG", exif=exif)
    with open_example(browser, digits_page) as page:
        decide(page, file.getvalue(), "turned.jpg", "image/jpeg")
        expect(page.locator("#note")).to_contain_text("cropped to the center and scaled it from 40 × 80 to 16 × 16")
        assert page.locator("#pixels").evaluate("canvas => [canvas.width, canvas.height]") == [16, 16]


TRANSFER = """async ([address, name]) => {
  const content = await (await fetch(address)).blob();
  const transfer = new DataTransfer();
  transfer.items.add(new File([content], name));
  return transfer;
}"""


def test_pictures_and_deciders_can_be_dropped_and_pasted(
    browser: Browser, site: Site, digits: Digits, digits_page: str
) -> None:
    first, second = digits.files[:2]
    (site.folder / "first.png").write_bytes(first)
    (site.folder / "second.png").write_bytes(second)
    site.export(digits.adaptive_policy, "other.onnx")
    with open_example(browser, digits_page) as page:
        page.dispatch_event("#drop", "drop", {"dataTransfer": page.evaluate_handle(TRANSFER, ["first.png", "1.png"])})
        dropped = read_decision(page, "1.png")
        page.evaluate_handle(TRANSFER, ["second.png", "2.png"]).evaluate(
            "files => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: files }))"
        )
        pasted = read_decision(page, "2.png")
        assert (dropped, pasted) == (decide(page, first, "3.png"), decide(page, second, "4.png"))
        page.dispatch_event("body", "drop", {"dataTransfer": page.evaluate_handle(TRANSFER, ["other.onnx", "o.onnx"])})
        expect(page.locator("#provenance")).to_contain_text("o.onnx")
        expect(page.locator("#result")).to_be_hidden()
        assert decide(page, first).looks < dropped.looks


def test_names_of_classes_and_files_are_texts(browser: Browser, site: Site, resizing_policy: Path) -> None:
    with open_example(browser, site.export(resizing_policy, "hostile.onnx")) as page:
        for seed in range(30):
            decide(page, make_png(make_photo(20, 20, seed)), f"{seed}<b>.png")
            if HOSTILE in page.inner_text("#class"):
                break
        assert HOSTILE in page.inner_text("#class")
        assert HOSTILE in page.inner_text("#likely")
        assert page.locator("img:not(#picture, .brand img), b:not(#legend b, #invitation b)").count() == 0


COUNT_INTACT = """async ([address, bits]) => {
  const { isIntact } = await import("/metadata.js");
  const bytes = new Uint8Array(await (await fetch(address)).arrayBuffer());
  const before = await isIntact(bytes);
  let accepted = 0;
  for (const bit of bits) {
    bytes[bit >> 3] ^= 1 << (bit & 7);
    accepted += await isIntact(bytes).catch(() => false);
    bytes[bit >> 3] ^= 1 << (bit & 7);
  }
  return [before, accepted];
}"""
"""Whether a file is intact, and how many of its copies with one flipped bit are."""


def test_wrong_files_are_explained(browser: Browser, site: Site, digits: Digits, digits_page: str) -> None:
    with open_example(browser, digits_page) as page:
        right = decide(page, digits.files[0])
        page.set_input_files("#file", FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"buy milk"))
        expect(page.locator("#problem")).to_contain_text("“notes.txt” cannot be read")
        for place in ("#result", "#details", "#facts", "#picture"):
            expect(page.locator(place)).to_be_hidden()
        expect(page.locator("body")).not_to_have_class("busy")
        cut = (site.folder / "digits.onnx").read_bytes()[:-9]
        model = digits.policy.with_name("digits.onnx").read_bytes()
        for name, content in {"model.onnx": model, "cut.onnx": cut, "empty.onnx": b"", "x.onnx": b"<html>"}.items():
            page.set_input_files("#decider", FilePayload(name=name, mimeType="", buffer=content))
            expect(page.locator("#problem")).to_contain_text(f"“{name}” is not an exported file")
        flipped = bytearray((site.folder / "digits.onnx").read_bytes())
        flipped[len(flipped) // 2] ^= 1
        page.set_input_files("#decider", FilePayload(name="flipped.onnx", mimeType="", buffer=bytes(flipped)))
        expect(page.locator("#problem")).to_contain_text("“flipped.onnx” is damaged")
        places = np.random.default_rng(0).integers(0, 8 * len(flipped), 300).tolist()
        last = range(8 * (len(flipped) - 89), 8 * len(flipped))  # the checksum and its framing
        assert page.evaluate(COUNT_INTACT, ["digits.onnx", [*places, *last]]) == [True, 0]
        assert decide(page, digits.files[0], "again.png") == right, "the decider before is still there"
        expect(page.locator("#problem")).to_be_hidden()


def test_a_missing_decider_is_explained(browser: Browser, site: Site, digits: Digits) -> None:
    with open_example(browser, f"{site.url}/", "Failed to load resource") as page:
        expect(page.locator("#problem")).to_contain_text("“decide.onnx”")
        expect(page.locator("#choose")).to_be_disabled()
        site.export(digits.policy, "chosen.onnx")
        page.set_input_files("#decider", site.folder / "chosen.onnx")
        expect(page.locator("#choose")).to_be_enabled()
        expect(page.locator("#problem")).to_be_hidden()


def test_deciders_of_other_sites_are_not_loaded(browser: Browser, site: Site) -> None:
    elsewhere = "http://localhost:1/decide.onnx"
    with open_example(browser, f"{site.url}/?model={elsewhere}", "Connecting to", "Refused", "Fetch API") as page:
        expect(page.locator("#problem")).to_contain_text(elsewhere)


def test_keyboard_and_screen_reader(browser: Browser, digits: Digits, digits_page: str) -> None:
    with open_example(browser, digits_page) as page:
        page.bring_to_front()  # a page without focus takes no keys
        page.keyboard.press("Tab")
        expect(page.locator("#choose")).to_be_focused()
        with page.expect_file_chooser() as chooser:
            page.locator("#choose").press("Enter")
        chooser.value.set_files(FilePayload(name="digit.png", mimeType="image/png", buffer=digits.files[0]))
        read_decision(page, "digit.png")
        live = page.locator("[aria-live=polite]")
        for text in (page.locator("#accept").inner_text(), page.locator("#class").inner_text(), "Confidence"):
            expect(live).to_contain_text(text)
        assert page.locator("img:not([alt]), section:not([aria-label], [aria-labelledby])").count() == 0


def test_the_guarantee_is_stated(
    browser: Browser, site: Site, digits: Digits, digits_page: str, resizing_policy: Path
) -> None:
    text = str(sl.load_policy(digits.policy).guarantee)
    with open_example(browser, digits_page) as page:
        expect(page.locator("#guarantee")).to_contain_text(text)
    with open_example(browser, site.export(resizing_policy, "plain.onnx")) as page:
        expect(page.locator("#guarantee")).to_contain_text("Nothing is guaranteed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_fits_the_width_with_enough_contrast(
    browser: Browser, digits: Digits, digits_page: str, size: dict[str, int], scheme: str
) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    with open_example(browser, digits_page, context=context) as page:
        shown = [decide(page, file, f"{number}.png").accept for number, file in enumerate(digits.files[:40])]
        for accept in (True, False):
            decide(page, digits.files[shown.index(accept)], f"{accept}.png")
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
            for place in TEXTS:
                assert page.locator(place).count(), place
                assert page.evaluate(CONTRAST, place) >= 4.5, place
            box = page.locator("#meter").bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= size["height"], "the decision is on the first screen"
            verdict, picture = (page.locator(place).bounding_box() for place in ("#verdict", "#drop"))
            assert verdict is not None
            assert picture is not None
            assert size is DESKTOP or verdict["y"] < picture["y"], "on a phone, the verdict is first"
            if folder := os.environ.get("SCREENSHOTS"):
                page.screenshot(path=Path(folder) / f"browser-{size['width']}-{scheme}-{accept}.png", full_page=True)
