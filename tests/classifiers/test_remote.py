"""Remote models: a real server of the protocol (MLServer), also one that is killed."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import LoadOptions, load_classifier
from secondlook.classifiers.remote import RemoteClassifier
from secondlook.errors import ClassifierError
from tests.classifiers.loopback_server import IMAGES, respond_well, serve

Array = np.ndarray[Any, Any]


@pytest.fixture
def remote(server: Any) -> Iterator[Any]:
    classifier = load_classifier(f"{server.address}/v2/models/tiny", output="logits", rows_per_request=2, in_flight=3)
    yield classifier
    classifier.close()  # type: ignore[attr-defined]


@pytest.mark.outside
def test_the_input_is_read_from_the_server(remote: Any) -> None:
    assert remote.preprocessing.input_size == (8, 8)
    assert remote.preprocessing.layout == "NCHW"
    assert remote.n_classes == 5


@pytest.mark.outside
def test_concurrent_requests_keep_the_order_of_the_images(remote: Any, network: Any, images: Array) -> None:
    many = np.concatenate([images] * 5)
    expected = network.logits(many.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    np.testing.assert_allclose(remote(many), expected, atol=1e-4)


@pytest.mark.outside
def test_options_are_parsed_from_the_url(server: Any, remote: Any, images: Array) -> None:
    plain = load_classifier(f"{server.address}/v2/models/tiny?output=logits&std=.5")
    assert plain.preprocessing.std == (0.5,)
    np.testing.assert_allclose(plain(images // 2), remote(images // 2 * 2), atol=1e-4)
    plain.close()  # type: ignore[attr-defined]


@pytest.mark.outside
def test_several_threads_can_share_a_classifier(remote: Any, images: Array) -> None:
    expected, found = remote(images), {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: remote(images)})) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], expected) for number in range(3))


@pytest.mark.outside
def test_a_server_that_restarts_during_a_batch_loses_nothing(mortal_server: Any, network: Any, images: Array) -> None:
    classifier = load_classifier(
        f"{mortal_server.address}/v2/models/tiny", output="logits", rows_per_request=1, in_flight=2, retries=12
    )
    many = np.concatenate([images] * 6)
    killed = threading.Event()

    def restart() -> None:
        time.sleep(0.5)
        mortal_server.kill()
        killed.set()
        mortal_server.start(wait=False)

    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        outputs = classifier(many)
        assert killed.is_set()
    finally:
        # In any case, the restarted server must exist before the fixture stops it.
        restarting.join()
    expected = network.logits(many.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    np.testing.assert_allclose(outputs, expected, atol=1e-4)
    classifier.close()  # type: ignore[attr-defined]


@pytest.mark.outside
def test_the_number_of_retries_is_bounded(mortal_server: Any, images: Array) -> None:
    classifier = load_classifier(f"{mortal_server.address}/v2/models/tiny", output="logits", retries=2, timeout=2)
    mortal_server.kill()
    with pytest.raises(ClassifierError, match=r"'tiny' at http://127.* 3 attempt"):
        classifier(images)
    classifier.close()  # type: ignore[attr-defined]


@pytest.mark.outside
def test_an_unknown_model_is_rejected_without_retries(server: Any) -> None:
    with pytest.raises(ClassifierError, match=r"'tny' at .* 1 attempt"):
        load_classifier(f"{server.address}/v2/models/tny", output="logits")


@pytest.mark.outside
def test_the_digest_depends_on_the_name(server: Any) -> None:
    address = f"{server.address}/v2/models/tiny"
    first, second = (load_classifier(f"{address}{end}", output="logits", name="mine") for end in ("", "/"))
    other = load_classifier(address, output="logits")
    assert first.digest == second.digest != other.digest
    for classifier in (first, second, other):
        classifier.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/v2/models/m", "/base/v2/models/m/versions/3", "/base%20a/v2/models/m/"])
def test_requests_go_to_the_path_of_the_url(path: str) -> None:
    with serve(respond_well) as server:
        classifier = load_classifier(f"http://{server.host}{path}?output=logits")
        classifier(IMAGES)
        classifier.close()  # type: ignore[attr-defined]
    model, base = path.rstrip("/"), path.partition("/v2")[0]
    assert [request.split()[1].decode() for request in server.requests] == [model, f"{base}/v2", f"{model}/infer"]


def test_an_address_without_a_model_is_rejected() -> None:
    with pytest.raises(ClassifierError, match="'http://localhost:9'"):
        load_classifier("http://localhost:9", output="logits")


def test_invalid_retry_settings_are_rejected() -> None:
    with pytest.raises(ClassifierError, match="in_flight=0"):
        load_classifier("http://localhost:9/v2/models/m", output="logits", in_flight=0)


class RecordingClient:
    """A client of a model with a fixed batch size that outputs two values of the first pixel of each image."""

    identity = ("h", "m", "")

    def __init__(self) -> None:
        self.rows: list[int] = []

    def get_metadata(self) -> dict[str, Any]:
        described = {"name": "a", "datatype": "UINT8", "shape": [4, 8, 8, 3]}
        return {"inputs": [described], "outputs": [{"name": "b", "datatype": "FP32", "shape": [4, 2]}]}

    def infer(self, requests: list[Array], input_name: str, output_name: str) -> list[Array]:
        self.rows = [len(request) for request in requests]
        return [request[:, 0, 0, :2].astype(np.float32) for request in requests]


def test_fixed_batches_are_padded_and_sent_together(images: Array) -> None:
    client: Any = RecordingClient()
    classifier = RemoteClassifier(client, LoadOptions("m", output="logits"), None, 32)
    np.testing.assert_array_equal(classifier(images), images[:, 0, 0, :2])
    assert client.rows == [4, 4]


def test_a_server_that_describes_no_input_is_rejected() -> None:
    client: Any = RecordingClient()
    client.get_metadata = lambda: {"inputs": None, "outputs": []}
    with pytest.raises(ClassifierError, match="'m' has 0 inputs"):
        RemoteClassifier(client, LoadOptions("m", output="logits"), None, 32)
