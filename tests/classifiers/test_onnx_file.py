"""ONNX files from elsewhere: external data, seals, damage, pipes, and models or calls that never end."""

import hashlib
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import OnnxFile, load_classifier
from secondlook.classifiers.onnx_file import TIME_LIMITS, TimeLimits
from secondlook.errors import ClassifierError
from secondlook.views import ViewSet
from tests.classifiers.conftest import write_graph


def field(number: int, content: bytes | int) -> bytes:
    """Return a protobuf field."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def model_with_external_data(location: bytes, *, is_external: int = 1, more: bytes = b"") -> bytes:
    """Return a model [n, 3, 8, 8] -> [n, 3] plus three external floats, whose location is written value-first."""
    entry = field(2, location) + field(1, b"location")
    weights = b"".join([field(1, 3), field(2, 1), field(8, b"w"), field(13, entry), field(14, is_external), more])
    pool = field(1, b"images") + field(2, b"pooled") + field(4, b"GlobalAveragePool")
    flatten = field(1, b"pooled") + field(2, b"flat") + field(4, b"Flatten")
    add = field(1, b"flat") + field(1, b"w") + field(2, b"logits") + field(4, b"Add")
    sizes = b"".join(field(1, each) for each in [field(2, b"n"), *(field(1, size) for size in (3, 8, 8))])
    images = field(1, b"images") + field(2, field(1, field(1, 1) + field(2, sizes)))
    logits = field(1, b"logits") + field(2, field(1, field(1, 1)))
    graph = b"".join([field(1, pool), field(1, flatten), field(1, add), field(2, b"g"), field(5, weights)])
    return field(1, 8) + field(7, graph + field(11, images) + field(12, logits)) + field(8, field(2, 17))


def load_with_weights(folder: Path, location: str) -> Any:
    (folder / "m.onnx").write_bytes(model_with_external_data(location.encode()))
    return load_classifier(f"onnx:{folder / 'm.onnx'}", output="logits")


def find_external_data(file: Path, content: bytes) -> list[Path]:
    file.write_bytes(content)
    return OnnxFile(file, "onnx:m").find_external_data()


def test_digest_of_a_model_is_the_one_of_its_files(make_onnx: Any, images: Array, tmp_path: Path) -> None:
    file, weights = make_onnx(), np.array([1, 2, 3], np.float32)
    assert load_classifier(f"onnx:{file}").digest == hashlib.sha256(file.read_bytes()).hexdigest()
    model, external = tmp_path / "m.onnx", tmp_path / "weights.bin"
    weights.tofile(external)
    before = load_with_weights(tmp_path, external.name)
    np.testing.assert_allclose(before(images), images.mean(axis=(1, 2)) / 255 + weights, atol=1e-5)
    content = bytearray(weights.tobytes())
    content[5] ^= 1
    external.write_bytes(content)
    changed = load_with_weights(tmp_path, external.name)
    assert changed.digest != before.digest
    assert changed.list_files() == [model, external]
    weights.tofile(external)
    assert load_with_weights(tmp_path, external.name).digest == before.digest
    model.write_bytes(model.read_bytes() + field(14, b""))
    assert load_classifier(f"onnx:{model}").digest not in (before.digest, changed.digest)


def test_external_weights_are_found_in_every_message(tmp_path: Path) -> None:
    """In branches and attributes of nodes, in functions and in sparse tensors, not only beside the graph."""
    tensor = field(13, field(1, b"location") + field(2, b"NAME")) + field(14, 1)
    places = {
        "initializer": field(7, field(5, tensor)),
        "attribute": field(7, field(1, field(5, field(5, tensor)))),
        "branch": field(7, field(1, field(5, field(6, field(1, field(5, field(10, tensor))))))),
        "function": field(25, field(7, field(5, field(11, field(5, tensor))))),
        "sparse": field(7, field(15, field(1, tensor)) + field(15, field(2, tensor))),
        "training": field(20, field(1, field(5, tensor))),
    }
    (tmp_path / "NAME").touch()
    for place, content in places.items():
        assert find_external_data(tmp_path / "m.onnx", content) == [tmp_path / "NAME"], place


@pytest.mark.parametrize("options", [{}, {"is_external": 1 + 2**32}, {"more": field(14, 7)}])
@pytest.mark.parametrize(
    "location",
    ["/etc/hostname", "../secret", "a/../../secret", "..\\secret", "C:\\secret", "", "*/_ORT_MEM_ADDR_/*", "a\0b"],
)
def test_external_weights_elsewhere_are_rejected(location: str, options: dict[str, Any], tmp_path: Path) -> None:
    """ONNX Runtime rejects most of them itself; none may get that far."""
    (tmp_path / "secret").write_bytes(bytes(12))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ClassifierError, match="'onnx:m'"):
        find_external_data(tmp_path / "folder" / "m.onnx", model_with_external_data(location.encode(), **options))


def nest_graphs(depth: int) -> bytes:
    return field(1, field(5, field(6, nest_graphs(depth - 1)))) if depth else b""


IN_PIECES = field(5, field(13, field(1, b"location") + field(2, b"/etc/hostname"))) + field(5, field(14, 1))
"""Protobuf merges the pieces of a message, so that neither alone shows that a file elsewhere is read."""


def test_hostile_messages_are_rejected(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    with pytest.raises(ClassifierError, match="/etc/hostname"):
        find_external_data(file, field(7, field(1, field(5, IN_PIECES))))
    with pytest.raises(ClassifierError, match="'onnx:m' is not an ONNX file"):
        find_external_data(file, field(7, nest_graphs(200)))
    os.truncate(file, 2**31)  # a sparse file
    with pytest.raises(ClassifierError, match="2,147,483,647 bytes"):
        OnnxFile(file, "m").find_external_data()


def test_seal_is_the_last_entry_of_the_metadata(make_onnx: Any, tmp_path: Path) -> None:
    content = make_onnx().read_bytes()
    sealed = OnnxFile.seal(content)
    checksum = hashlib.sha256(content).hexdigest().encode()
    assert sealed == content + field(14, field(1, b"secondlook.checksum") + field(2, checksum))
    for stored, is_sealed in ((content, False), (sealed, True), (sealed[:-1], False), (b"", False)):
        (tmp_path / "m.onnx").write_bytes(stored)
        assert OnnxFile(tmp_path / "m.onnx", "m").is_sealed() == is_sealed


@pytest.mark.posix
def test_links_are_followed_within_a_cache_only(tmp_path: Path) -> None:
    """The Hugging Face Hub keeps files in one folder and links to them from another."""
    for name in ("folder", "blobs", "snapshot"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (tmp_path / "folder" / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ClassifierError, match=r"'weights\.bin'.*folder"):
        load_with_weights(tmp_path / "folder", "weights.bin")
    (tmp_path / "blobs" / "1").write_bytes(model_with_external_data(b"weights.bin"))
    (tmp_path / "blobs" / "2").write_bytes(bytes(12))
    model, weights = (tmp_path / "snapshot" / name for name in ("m.onnx", "weights.bin"))
    model.symlink_to(tmp_path / "blobs" / "1")
    weights.symlink_to(tmp_path / "blobs" / "2")
    assert OnnxFile(model, "m").find_external_data() == [weights]


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["named pipe", "folder", "device"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    place = {"named pipe": tmp_path / "pipe", "folder": tmp_path, "device": Path("/dev/zero")}[kind]
    if kind == "named pipe":
        os.mkfifo(place)
        with pytest.raises(ClassifierError, match=kind):
            load_with_weights(tmp_path, "pipe")
    for spec in (f"onnx:{place}", f"torch:{place}", f"sklearn:{place}?trust_pickle=true"):
        with pytest.raises(ClassifierError, match=kind):
            load_classifier(spec, output="probabilities")


# --- Time limits ---


ENDLESS = """(float[n, 3, 8, 8] images) => (float[n, 3] logits) {
    pooled = GlobalAveragePool(images)
    flat = Flatten(pooled)
    logits = Loop <body = body (int64 step, bool before, float values) => (bool go_on, float next) {
        go_on = Identity(before)
        next = Relu(values)
    }> (steps, yes, flat)
}"""


def test_an_endless_loop_ends_at_the_timeout(tmp_path: Path, images: Array, accelerate: Any) -> None:
    """The loop has 2**63 - 1 steps."""
    endless = f"onnx:{write_graph(tmp_path / 'm.onnx', ENDLESS, steps=np.array(2**63 - 1), yes=np.array(True))}"
    for _ in range(100):  # on a busy machine, opening a session may take longer, too
        with suppress(ClassifierError):
            classifier = load_classifier(f"{endless}?timeout=0.3")
            moved = accelerate(classifier)
            break
    calls = (lambda: classifier(images), lambda: moved.start(moved.upload(images), ViewSet("identity").views)())
    for call in calls:
        with pytest.raises(ClassifierError, match=r"0\.3 seconds on a batch of 7 images"):
            call()
    with pytest.raises(ClassifierError, match="timeout=0"):
        load_classifier(f"{endless}?timeout=0")


def assert_stopped_in_time(limits: TimeLimits) -> None:
    stopped = threading.Event()
    with limits.limit(0.01, stopped.set):
        assert stopped.wait(300)


def test_only_the_call_that_takes_too_long_is_stopped() -> None:
    def count_watching_threads() -> int:
        return sum(thread.name == "secondlook-time-limits" for thread in threading.enumerate())

    limits, late = TimeLimits(), threading.Event()
    before = count_watching_threads()
    with limits.limit(3600, late.set):
        for _ in range(2):  # the second one while the thread waits for the longer limit
            assert_stopped_in_time(limits)
        for _ in range(100):
            with limits.limit(3600, late.set):
                pass
    assert not late.is_set()
    assert count_watching_threads() == before + 1, "one thread watches all calls"


@pytest.mark.parametrize("fails", [False, True])
def test_call_that_ended_is_forgotten(fails: bool) -> None:
    limits, stopped, start = TimeLimits(), threading.Event(), time.monotonic()
    with suppress(ZeroDivisionError), limits.limit(0.5, stopped.set):
        _ = 1 / (not fails)
    ended_in_time = time.monotonic() < start + 0.5
    later = threading.Event()
    with limits.limit(0.6, later.set):
        assert later.wait(300)
    assert not (ended_in_time and stopped.is_set())


def test_a_thread_that_cannot_be_started_is_started_by_the_next_call() -> None:
    limits = TimeLimits()
    with (
        patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
        pytest.raises(RuntimeError),
        limits.limit(0.01, lambda: None),
    ):
        pass
    assert_stopped_in_time(limits)


@pytest.mark.posix
def test_limits_hold_in_a_forked_process() -> None:
    with TIME_LIMITS.limit(3600, lambda: None):
        pass
    process = os.fork()
    if process == 0:
        stopped = threading.Event()
        with TIME_LIMITS.limit(0.01, stopped.set):
            os._exit(0 if stopped.wait(300) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
