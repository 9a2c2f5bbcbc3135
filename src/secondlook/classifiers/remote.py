"""Remote models over the Open Inference Protocol (KServe V2: Triton, KServe, MLServer)."""

import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier, digest_values, shorten_reason
from secondlook.classifiers.credentials import AUTHORIZATION, hide_secrets, merge_headers, read_header_from_env
from secondlook.classifiers.http_client import HttpClient, HttpResponse
from secondlook.classifiers.inference_protocol import (
    INPUT_TYPES,
    describe_body,
    describe_status,
    format_request,
    parse_binary_support,
    parse_model,
    parse_output,
)
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.model_input import (
    ModelInput,
    check_single_input,
    choose_output_name,
    split_batches,
    split_padded,
)
from secondlook.errors import ClassifierError

FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0
QUERY_RETRIES = 2
"""Metadata queries are retried this often, so that a wrong address is reported soon."""

MAX_METADATA_BYTES = 2**20
MAX_RESPONSE_BYTES = 32 * 2**20
"""Enough for 32 images x 21,843 classes as JSON."""

TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
"""HTTP statuses that may differ at the next attempt."""

STARTUP_STATUSES = (400, 404)
"""HTTP statuses of a server that has just started and has not loaded its models yet."""

MODEL_PATH = re.compile(r"(?P<base>.*?)/?v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?/?")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Address:
    """Address of a model: host with port and base path, name, version, and whether to use TLS."""

    host: str
    model: str
    version: str
    encrypted: bool

    @classmethod
    def parse(cls, url: str, model: str | None, version: str | None, spec: str) -> "Address":
        """Parse a URL that contains the path of the model, or a server's URL with the model's name given beside it."""
        parts = urlsplit(url)
        found = MODEL_PATH.fullmatch(parts.path)
        if (found is None and model is None) or not _is_address(parts):
            raise ClassifierError(
                f"{spec!r} does not name a model; "
                f"expected {parts.scheme}://HOST:PORT/v2/models/NAME, or pass model=NAME (in a spec: ?model=NAME)."
            )
        base = found["base"] if found else parts.path
        return cls(
            host=parts.netloc + base.rstrip("/"),
            model=model or (found["model"] if found else ""),
            version=version or (found["version"] if found else None) or "",
            encrypted=parts.scheme == "https",
        )

    def connect(self, timeout: float) -> HttpClient:
        """Return a client for the server."""
        parts = urlsplit(f"//{self.host}")
        port = parts.port or (443 if self.encrypted else 80)
        return HttpClient(parts.hostname or "", port, encrypted=self.encrypted, timeout=timeout)

    @property
    def server_path(self) -> str:
        """Path of the server's description."""
        return quote(urlsplit(f"//{self.host}").path, safe="/%") + "/v2"

    @property
    def model_path(self) -> str:
        """Path of the model's description; inference requests go below it."""
        version = f"/versions/{quote(self.version)}" if self.version else ""
        return f"{self.server_path}/models/{quote(self.model)}{version}"

    def __str__(self) -> str:
        return f"{self.model!r} at {'https' if self.encrypted else 'http'}://{self.host}"


def _is_address(parts: SplitResult) -> bool:
    try:
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port above 65535
        return False


@dataclass(frozen=True)
class RetrySettings:
    """How long to wait for a response, and how often to repeat a request."""

    timeout: float
    retries: int
    seed: int

    def compute_waits(self, request: int) -> list[float]:
        """Return the seconds before each retry: doubling, and shortened by up to half at random to spread the load."""
        longest = np.minimum(FIRST_WAIT * 2.0 ** np.arange(self.retries), LONGEST_WAIT)
        factors = np.random.default_rng((self.seed, request)).uniform(0.5, 1, self.retries)
        return [float(wait) for wait in longest * factors]


class _StatusError(Exception):
    """A response with an HTTP status other than 200."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"[{status}] {reason}")
        self.status = status


class InferenceClient:
    """A client for one model that sends several requests at once; whatever goes wrong is a `ClassifierError`."""

    def __init__(
        self,
        address: Address,
        retrying: RetrySettings,
        *,
        in_flight: int,
        binary: bool | None,
        headers: Mapping[str, str],
    ) -> None:
        self.address = address
        self._retrying = retrying
        self._binary = binary
        self._headers = dict(headers)
        self._http = address.connect(retrying.timeout)
        self._threads = ThreadPoolExecutor(max_workers=in_flight, thread_name_prefix="inference-client")
        self._numbers = itertools.count(1)

    def get_metadata(self) -> dict[str, Any]:
        """Return the server's description of the model: its inputs, outputs and versions."""
        return self._query(self.address.model_path, parse_model)

    def _supports_binary(self) -> bool:
        """Return whether the server lists the binary tensor extension; every server supports JSON."""
        return self._query(self.address.server_path, parse_binary_support)

    def _query(self, path: str, parse: Callable[[HttpResponse], Result]) -> Result:
        def send() -> Result:
            return self._exchange("GET", path, {}, None, MAX_METADATA_BYTES, parse)

        waits = self._retrying.compute_waits(0)[:QUERY_RETRIES]
        return self._send_with_retries(send, waits, TRANSIENT_STATUSES, threading.Event())

    def infer(self, requests: Sequence[Array], input_name: str, output_name: str) -> list[Array]:
        """Return the outputs in the order of the requests. Arrays [n, ...] -> arrays [n, n_classes]"""
        if self._binary is None:
            self._binary = self._supports_binary()
        is_binary, stop = self._binary, threading.Event()

        def send(inputs: Array, number: int) -> Array:
            return self._send_with_retries(
                lambda: self._infer_once(inputs, input_name, output_name, is_binary),
                self._retrying.compute_waits(number),
                TRANSIENT_STATUSES + STARTUP_STATUSES,
                stop,
            )

        numbers = [next(self._numbers) for _ in requests]
        try:
            return list(self._threads.map(send, requests, numbers))
        finally:
            stop.set()  # After a failure, the other requests are not repeated.

    def _infer_once(self, inputs: Array, input_name: str, output_name: str, is_binary: bool) -> Array:
        headers, body = format_request(inputs, input_name, output_name, is_binary)
        path = f"{self.address.model_path}/infer"

        def parse(response: HttpResponse) -> Array:
            return parse_output(response, output_name, len(inputs))

        return self._exchange("POST", path, headers, body, MAX_RESPONSE_BYTES, parse)

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        parse: Callable[[HttpResponse], Result],
    ) -> Result:
        """Send one request and parse the response."""
        all_headers = {"User-Agent": "secondlook", **headers, **self._headers}
        response = self._http.send(method, path, headers=all_headers, body=body, max_bytes=max_bytes)
        if response.status != 200:
            raise _StatusError(response.status, describe_status(response))
        try:
            return parse(response)
        except Exception as error:
            raise ClassifierError(
                self._hide(
                    f"model {self.address} sent a response that does not follow the Open Inference Protocol "
                    f"({describe_body(response)}): {shorten_reason(error)}; check the address, and whether a proxy "
                    "answers instead of the server."
                )
            ) from error

    def _send_with_retries(
        self, send: Callable[[], Result], waits: Sequence[float], statuses: Sequence[int], stop: threading.Event
    ) -> Result:
        """Send a request; repeat it after each wait if the connection fails or the response has one of `statuses`."""
        attempts = 0
        while True:
            attempts += 1
            try:
                return send()
            except ClassifierError as error:
                raise ClassifierError(self._hide(str(error))) from error
            except (OSError, HTTPException, _StatusError) as error:
                is_final = isinstance(error, _StatusError) and error.status not in statuses
                if is_final or attempts > len(waits) or stop.wait(waits[attempts - 1]):
                    raise self._describe_failure(error, attempts) from error
            except Exception as error:
                raise self._describe_failure(error, attempts) from error

    def _describe_failure(self, error: Exception, attempts: int) -> ClassifierError:
        return ClassifierError(
            self._hide(
                f"model {self.address} failed after {attempts} attempt(s): {shorten_reason(error)}; "
                "check the address, the model's name and that the server is up, or raise timeout= or retries=."
            )
        )

    def _hide(self, text: str) -> str:
        return hide_secrets(text, self._headers)

    def close(self) -> None:
        """Wait for requests that were sent, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._http.close()


class RemoteClassifier(Classifier):
    """A model on a server; a batch is split into requests, several of which are sent concurrently."""

    def __init__(
        self, client: InferenceClient, options: LoadOptions, output_name: str | None, rows_per_request: int
    ) -> None:
        metadata = client.get_metadata()
        self._client = client
        self._input = _describe_input(metadata, options.spec)
        outputs = {each["name"]: each for each in metadata.get("outputs") or []}
        self._output_name = choose_output_name(list(outputs), output_name, options.spec)
        self._rows_per_request = rows_per_request
        address = client.address
        version = address.version or ",".join(metadata.get("versions") or [])
        identity = options.name or [address.host, address.model, version, self._output_name]
        super().__init__(
            name=options.display_name,
            digest=digest_values("remote", identity),
            output=options.require_output(),
            preprocessing=options.override(self._input.make_preprocessing(options.layout, options.spec)),
            n_classes=_parse_n_classes(outputs[self._output_name]),
        )

    def forward(self, images: Array) -> Array:
        """Return the outputs in the order of the images. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        inputs = self.preprocessing.normalize(images)
        fixed = self._input.batch_size
        requests = split_batches(inputs, self._rows_per_request) if fixed is None else split_padded(inputs, fixed)
        outputs = self._client.infer(requests, self._input.name, self._output_name)
        for output in outputs:
            if output.shape[1:] != outputs[0].shape[1:]:
                raise ClassifierError(
                    f"classifier {self.name!r} returned arrays of shapes {list(outputs[0].shape)} and "
                    f"{list(output.shape)} for requests of one batch; expected the same classes for each."
                )
        return np.concatenate(outputs)[: len(inputs)]

    def close(self) -> None:
        """Close the connections; the classifier cannot be used afterwards."""
        self._client.close()


def open_remote(
    location: str,
    options: LoadOptions,
    *,
    model: str | None = None,
    version: str | None = None,
    output_name: str | None = None,
    rows_per_request: int = 32,
    in_flight: int = 4,
    timeout: float = 30.0,
    retries: int = 8,
    seed: int = 0,
    binary: bool | None = None,
    headers: Mapping[str, str] | None = None,
    header_from_env: str | None = None,
) -> Classifier:
    """Open a model on a server.

    Parameters
    ----------
    location
        `//HOST:PORT/v2/models/NAME[/versions/VERSION]`, or the address of the server with `model=`. The user name and
        password of a URL (`http://USER:PASSWORD@HOST`) are sent as an Authorization header, and never stored.
    options
        Options common to all model schemes.
    model, version
        Name and version of the model, if the address does not contain them.
    output_name
        The output to use if there are several.
    rows_per_request, in_flight
        Images per request, and number of concurrent requests.
    timeout
        Seconds for each request in all: connecting, sending, and receiving the complete response.
    retries, seed
        How often a failed request is repeated, after waits that double from 0.25 to 8 seconds and are shortened at
        random with this seed.
    binary
        Send tensors as bytes (True) or as JSON (False); by default as bytes if the server supports it.
    headers
        HTTP headers of every request, such as an authorization; never stored.
    header_from_env
        Name of an environment variable that holds one more header, such as 'Authorization: Bearer TOKEN'. The name is
        part of the spec, the header is not.
    """
    options.require_output()
    if min(rows_per_request, in_flight) < 1 or retries < 0 or timeout <= 0:
        raise ClassifierError(
            f"rows_per_request={rows_per_request}, in_flight={in_flight} and timeout={timeout:g} of {options.spec!r} "
            f"must be positive, and retries={retries} must not be negative."
        )
    address = Address.parse(f"{options.scheme}:{location}", model, version, options.spec)
    retrying = RetrySettings(timeout=timeout, retries=retries, seed=seed)
    from_url = {} if options.authorization is None else {AUTHORIZATION: options.authorization}
    from_env = {} if header_from_env is None else dict([read_header_from_env(header_from_env, options.spec)])
    all_headers = merge_headers([from_url, headers or {}, from_env], options.spec)
    client = InferenceClient(address, retrying, in_flight=in_flight, binary=binary, headers=all_headers)
    try:
        return RemoteClassifier(client, options, output_name, rows_per_request)
    except BaseException:
        client.close()
        raise


for _scheme in ("http", "https"):
    model_scheme(
        _scheme,
        form=f"{_scheme}://HOST:PORT/v2/models/NAME",
        summary="model on a KServe V2 server (Triton, KServe, MLServer); output= is required",
    )(open_remote)


def _describe_input(metadata: Mapping[str, Any], spec: str) -> ModelInput:
    inputs = metadata.get("inputs") or []
    check_single_input([each["name"] for each in inputs], spec)
    return ModelInput.parse(inputs[0]["name"], inputs[0]["shape"], inputs[0]["datatype"], INPUT_TYPES, spec)


def _parse_n_classes(output: Mapping[str, Any]) -> int | None:
    shape = output.get("shape") or []
    return int(shape[1]) if len(shape) == 2 and shape[1] > 0 else None
