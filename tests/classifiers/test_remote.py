"""Remote classifiers, against a real server of the protocol (MLServer), one that dies included."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import load_classifier
from secondlook.classifiers.inference_client import Address, Patience
from secondlook.classifiers.remote import RemoteClassifier
from secondlook.classifiers.schemes import LoadOptions
from secondlook.errors import ClassifierError

pytest.importorskip("tritonclient.http")
Array = np.ndarray[Any, Any]


@pytest.fixture
def remote(server: Any) -> Iterator[Any]:
    classifier = load_classifier(f"{server.address}/v2/models/tiny", output="logits", rows_per_request=2, in_flight=3)
    yield classifier
    classifier.close()  # type: ignore[attr-defined]


def test_it_reads_the_input_from_the_server(remote: Any) -> None:
    assert remote.preprocessing.input_size == (8, 8)
    assert remote.preprocessing.layout == "NCHW"
    assert remote.n_classes == 5


def test_the_order_of_images_is_kept_over_several_requests_in_flight(remote: Any, network: Any, images: Array) -> None:
    many = np.concatenate([images] * 5)
    expected = network.logits(many.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    np.testing.assert_allclose(remote(many), expected, atol=1e-4)


def test_options_may_stand_in_the_address(server: Any, remote: Any, images: Array) -> None:
    plain = load_classifier(f"{server.address}?model=tiny&output=logits&binary=false&std=.5")
    assert plain.preprocessing.std == (0.5,)
    np.testing.assert_allclose(plain(images // 2), remote(images // 2 * 2), atol=1e-4)
    plain.close()  # type: ignore[attr-defined]


def test_it_may_be_called_from_several_threads(remote: Any, images: Array) -> None:
    expected, found = remote(images), {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: remote(images)})) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], expected) for number in range(3))


def test_a_server_that_dies_and_comes_back_half_way_loses_nothing(
    mortal_server: Any, network: Any, images: Array
) -> None:
    classifier = load_classifier(
        f"{mortal_server.address}/v2/models/tiny", output="logits", rows_per_request=1, in_flight=2, retries=12
    )
    many = np.concatenate([images] * 6)
    died = threading.Event()

    def die_and_come_back() -> None:
        time.sleep(0.5)
        mortal_server.kill()
        died.set()
        mortal_server.start(wait=False)

    killer = threading.Thread(target=die_and_come_back)
    killer.start()
    try:
        answers = classifier(many)
        assert died.is_set()
    finally:
        # Whatever happens, the restarted server must exist before the fixture stops it.
        killer.join()
    expected = network.logits(many.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    np.testing.assert_allclose(answers, expected, atol=1e-4)
    classifier.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("status", "asked"), [("404", 2), ("503", 2), ("401", 1)])
def test_a_server_that_is_still_loading_its_model_is_asked_again(
    status: str, asked: int, remote: Any, images: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted server first says that it does not know the model; a refusal is for good."""
    from tritonclient.utils import InferenceServerException

    remote(images[:1])
    client, calls = remote._client._client, []
    infer = client.infer

    def refusing_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise InferenceServerException("not now", status=status)
        return infer(*arguments, **options)

    expected = remote(images[:1])
    monkeypatch.setattr(client, "infer", refusing_once)
    if asked == 1:
        with pytest.raises(ClassifierError, match=r"did not answer in 1 attempt\(s\): \[401\] not now"):
            remote(images[:1])
    else:
        np.testing.assert_array_equal(remote(images[:1]), expected)
    assert len(calls) == asked


def test_retries_are_bounded_and_the_message_says_so(mortal_server: Any, images: Array) -> None:
    classifier = load_classifier(f"{mortal_server.address}/v2/models/tiny", output="logits", retries=2, timeout=2)
    mortal_server.kill()
    with pytest.raises(ClassifierError, match=r"'tiny' at http://127.* did not answer in 3 attempt\(s\).*server is up"):
        classifier(images)
    classifier.close()  # type: ignore[attr-defined]


def test_an_unknown_model_is_said_at_once(server: Any) -> None:
    with pytest.raises(ClassifierError, match=r"'tny' at .* did not answer in 1 attempt\(s\).*check the address"):
        load_classifier(f"{server.address}/v2/models/tny", output="logits")


def test_the_output_must_be_stated(server: Any) -> None:
    with pytest.raises(ClassifierError, match="pass output='logits' or output='probabilities'"):
        load_classifier(f"{server.address}/v2/models/tiny")


def test_a_wrong_output_name_lists_the_outputs(server: Any) -> None:
    with pytest.raises(ClassifierError, match="has no 'logits'; pass output_name= one of: 'scores'"):
        load_classifier(f"{server.address}/v2/models/tiny", output="logits", output_name="logits")


def test_a_wrong_statement_is_caught(server: Any, images: Array) -> None:
    wrong = load_classifier(f"{server.address}/v2/models/tiny", output="probabilities")
    with pytest.raises(ClassifierError, match="look like logits: pass output='logits'"):
        wrong(images)
    wrong.close()  # type: ignore[attr-defined]


def test_a_name_is_the_identity(server: Any) -> None:
    first, second = (load_classifier(f"{server.address}{path}", output="logits", name="mine") for path in PATHS)
    other = load_classifier(f"{server.address}{PATHS[0]}", output="logits")
    assert first.digest == second.digest != other.digest
    for classifier in (first, second, other):
        classifier.close()  # type: ignore[attr-defined]


PATHS = ("/v2/models/tiny", "?model=tiny")


@pytest.mark.parametrize(
    ("url", "model", "host", "name", "version"),
    [
        ("http://h:8000/v2/models/m", None, "h:8000", "m", ""),
        ("http://h:8000/v2/models/m/versions/3", None, "h:8000", "m", "3"),
        ("https://h/base/v2/models/m/", None, "h/base", "m", ""),
        ("http://h:8000", "m", "h:8000", "m", ""),
    ],
)
def test_addresses(url: str, model: str | None, host: str, name: str, version: str) -> None:
    assert Address.parsed(url, model, None, url) == Address(host, name, version, url.startswith("https"))


def test_an_address_without_a_model_says_how_to_name_one() -> None:
    with pytest.raises(ClassifierError, match=r"does not name a model; write http://HOST:PORT/v2/models/NAME"):
        load_classifier("http://localhost:9", output="logits")


def test_senseless_patience_is_refused() -> None:
    with pytest.raises(ClassifierError, match=r"in_flight=0 .* must be positive"):
        load_classifier("http://localhost:9/v2/models/m", output="logits", in_flight=0)


class RecordingClient:
    """A client of a model with a fixed batch that answers each image's first value twice."""

    address = Address("h", "m", "", False)

    def __init__(self) -> None:
        self.rows: list[int] = []

    def metadata(self) -> dict[str, Any]:
        described = {"name": "a", "datatype": "UINT8", "shape": [4, 8, 8, 3]}
        return {"inputs": [described], "outputs": [{"name": "b", "datatype": "FP32", "shape": [4, 2]}]}

    def infer(self, requests: list[Array], input_name: str, output_name: str) -> list[Array]:
        self.rows = [len(request) for request in requests]
        return [request[:, 0, 0, :2].astype(np.float32) for request in requests]


def test_a_fixed_batch_is_filled_up_and_still_several_are_in_flight(images: Array) -> None:
    client: Any = RecordingClient()
    classifier = RemoteClassifier(client, LoadOptions("m", "logits"), None, 32)
    np.testing.assert_array_equal(classifier(images), images[:, 0, 0, :2])
    assert client.rows == [4, 4]


def test_a_server_that_describes_no_input_is_said() -> None:
    client: Any = RecordingClient()
    client.metadata = lambda: {"inputs": None, "outputs": []}
    with pytest.raises(ClassifierError, match=r"describes 0 inputs for 'm'; .* describe it in the model's settings"):
        RemoteClassifier(client, LoadOptions("m", "logits"), None, 32)


def test_waits_double_up_to_a_bound_and_are_seeded() -> None:
    patience = Patience(timeout=1, retries=9, seed=3)
    waits = np.array(patience.waits(0))
    longest = np.minimum(0.25 * 2.0 ** np.arange(9), 8)
    assert ((waits <= longest) & (waits >= longest / 2)).all()
    assert patience.waits(0) == patience.waits(0) != patience.waits(1)
