"""A policy about digits, image files to send, and servers to send them to: in this process, or in one to be killed."""

import io
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.cli import demo
from secondlook.cli.demo import digit_images, split_digits
from secondlook.serving.options import ServiceOptions
from secondlook.serving.server import bind_sockets, make_server
from secondlook.serving.service import Service, open_service
from tests.policy_maker import attach

MODEL = Path(demo.__file__).parent / "demo_data" / "digits.onnx"
VIEWS = "identity shift:1,0 shift:-1,0 shift:0,1 shift:0,-1"


@dataclass(frozen=True)
class Digits:
    """A policy file with its model beside it, and image files that it was not calibrated on."""

    policy: Path
    adaptive_policy: Path
    files: tuple[bytes, ...]
    """PNG files."""
    labels: tuple[int, ...]


def make_digits(folder: Path) -> Digits:
    """Write policies that were calibrated on 600 digits, and return 900 others as files."""
    images, labels = digit_images()
    unseen = split_digits()[1]
    known, new = unseen[:600], unseen[600:]
    (folder / "digits.onnx").write_bytes(MODEL.read_bytes())
    classifier = sl.load_classifier(f"onnx:{folder / 'digits.onnx'}")
    source = sl.open_source(images[known], labels=labels[known], class_names=[str(digit) for digit in range(10)])
    preds = sl.collect(classifier, source, VIEWS, execution=sl.Execution(progress=False))
    for name, adaptive in (("policy.json", False), ("adaptive.json", True)):
        rule = sl.certify(preds, risk=0.05, delta=0.1, adaptive=adaptive)
        attach(
            rule,
            classifier=classifier,
            views=(rule.schedule.views if rule.schedule else preds.views.texts),
            data=source.spec,
            data_digest=source.digest,
            class_names=preds.class_names,
        ).save(folder / name)
    files = tuple(make_png(images[place]) for place in new)
    return Digits(folder / "policy.json", folder / "adaptive.json", files, tuple(labels[new].tolist()))


def make_png(pixels: Array) -> bytes:
    """Return an image uint8 [H, W, 1 or 3] as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")
    return file.getvalue()


def make_bomb(side: int = 30_000) -> bytes:
    """Return a small PNG file whose pixels take gigabytes."""
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, format="PNG")
    return file.getvalue()


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["error"]["code"])


def send(url: str, body: bytes | None = None, *, method: str | None = None, **headers: str) -> Reply:
    """Send a request; headers are named with `_` for `-`. An error of the server is a reply, too."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=body, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return Reply(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers, error.read())


def send_image(url: str, image: bytes, id_: str | None = None, **headers: str) -> Reply:
    """Send an image to be decided."""
    key = {} if id_ is None else {"Idempotency_Key": id_}
    return send(f"{url}/v1/decide", image, Content_Type="image/png", **key, **headers)


@contextmanager
def run_in_thread(service: Service) -> Iterator[str]:
    """Serve in a thread of this process, on a free port; yields the URL."""
    with bind_sockets(replace(service.options, host="127.0.0.1", port=0)) as sockets:
        server = make_server(service)
        thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serve(policy: Path, data_dir: Path, **options: Any) -> Iterator[tuple[str, Service]]:
    """Open a service and serve it in a thread; yields the URL and the service."""
    with open_service(policy, ServiceOptions(data_dir, **options)) as service, run_in_thread(service) as url:
        yield url, service


def read_rows(data_dir: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query to the SQLite file of a data folder."""
    import sqlite3

    connection = sqlite3.connect(data_dir / "service.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def make_noise(side: int = 16, seed: int = 0) -> bytes:
    """Return a PNG file of noise, which is rejected as a rule."""
    return make_png(np.random.default_rng(seed).integers(0, 256, (side, side, 1), dtype=np.uint8))
