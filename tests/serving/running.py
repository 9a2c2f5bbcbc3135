"""A policy about digits, image files to send, and servers in this process to send them to, with sockets or without."""

import asyncio
import io
import json
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from PIL import Image
from starlette.types import ASGIApp, Receive, Scope
from starlette.types import Message as AsgiMessage

import secondlook as sl
from secondlook.arrays import Array
from secondlook.cli import demo
from secondlook.cli.demo import digit_images, split_digits
from secondlook.policies import read_policy
from secondlook.serving import ServiceOptions
from secondlook.serving.database import images
from secondlook.serving.server import bind_sockets, make_server
from secondlook.serving.service import Service, open_service
from tests.policy_maker import attach

Server = tuple[str, Service]
"""The URL of a running service, and the service."""
Headers = dict[str, str] | None
MODEL = Path(demo.__file__).parent / "demo_data" / "digits.onnx"
VIEWS = "identity shift:1,0 shift:-1,0 shift:0,1 shift:0,-1"


@dataclass(frozen=True)
class Digits:
    """A policy file with its model beside it, and image files that it was not calibrated on."""

    policy: Path
    adaptive_policy: Path
    limited_policy: Path
    """An adaptive one with a limit of familiarity, which rejects some confident images."""
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
    kinds: dict[str, dict[str, Any]] = {"policy": {}, "adaptive": {"adaptive": True}}
    kinds["limited"] = {"adaptive": True, "unknown_budget": 0.02}
    for name, settings in kinds.items():
        rule = sl.certify(preds, risk=0.05, delta=0.1, **settings)
        attach(
            rule,
            classifier=classifier,
            views=(rule.schedule.views if rule.schedule else preds.views.texts),
            data=source.spec,
            data_digest=source.digest,
            class_names=preds.class_names,
        ).save(folder / f"{name}.json")
    files = tuple(make_png(images[place]) for place in new)
    policy, adaptive, limited = (folder / f"{name}.json" for name in kinds)
    return Digits(policy, adaptive, limited, files, tuple(labels[new].tolist()))


def make_cropping_policy(digits: Digits, folder: Path) -> Path:
    """Write a policy whose classifier sees the center of an image after a resize: 16 of 20 pixels."""
    (folder / "digits.onnx").write_bytes((digits.policy.parent / "digits.onnx").read_bytes())
    classifier = sl.load_classifier(f"onnx:{folder / 'digits.onnx'}", resize=20, crop=16)
    rule = read_policy(digits.policy)
    path = folder / "policy.json"
    attach(rule, classifier=classifier, views=tuple(VIEWS.split()), class_names=rule.class_names).save(path)
    return path


def replace_images(service: Service, content: bytes, media_type: str = "image/png") -> None:
    """Replace all stored images of a service."""
    with service.database.write() as connection:
        connection.execute(sa.update(images).values(media_type=media_type, content=content))


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
    key = {} if id_ is None else {"Idempotency_Key": id_}
    return send(f"{url}/v1/decide", image, Content_Type="image/png", **key, **headers)


def call(
    app: ASGIApp, method: str, target: str, headers: Headers = None, body: bytes | Sequence[bytes] = b"", **options: str
) -> Reply:
    """Send a request with a body of one or several chunks to an application without a server."""
    pieces = [body] if isinstance(body, bytes) else list(body)

    async def receive() -> AsgiMessage:
        if not pieces:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return asyncio.run(exchange(app, method, target, receive, headers, **options))


async def exchange(
    app: ASGIApp, method: str, target: str, receive: Receive, headers: Headers = None, *, scheme: str = "http"
) -> Reply:
    """Give a request to an application, which receives the body as messages, and return the response."""
    path, _, query = target.partition("?")
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": scheme,
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "state": {},
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 50000),
    }  # fmt: skip
    sent: list[AsgiMessage] = []

    async def keep(message: AsgiMessage) -> None:
        sent.append(message)

    await app(scope, receive, keep)
    start, *bodies = sent
    received = Message()
    for name, value in start["headers"]:
        received[name.decode()] = value.decode()
    return Reply(start["status"], received, b"".join(part.get("body", b"") for part in bodies))


def fail_with(error: Exception) -> Any:

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def wait_for(find: Callable[[], Any], is_done: Callable[[Any], bool] = bool) -> Any:
    """Look again and again until the result is as expected, and return it."""
    deadline = time.monotonic() + 120
    while not is_done(result := find()):
        assert time.monotonic() < deadline, result
        time.sleep(0.02)
    return result


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
def serve(policy: Path, data_dir: Path, **options: Any) -> Iterator[Server]:
    """Open a service and serve it in a thread; yields the URL and the service."""
    with open_service(policy, ServiceOptions(data_dir, **options)) as service, run_in_thread(service) as url:
        yield url, service


def read_rows(data_dir: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query to the SQLite file of a data folder."""
    connection = sqlite3.connect(data_dir / "service.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def make_noise(side: int = 16, seed: int = 0) -> bytes:
    """Return a PNG file of noise, which is rejected as a rule."""
    return make_png(np.random.default_rng(seed).integers(0, 256, (side, side, 1), dtype=np.uint8))
