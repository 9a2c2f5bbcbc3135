"""Remote models over the Open Inference Protocol (KServe V2: Triton, KServe, MLServer)."""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier, digest_values
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.model_input import (
    ModelInput,
    check_single_input,
    choose_output_name,
    split_batches,
    split_padded,
)
from secondlook.classifiers.preprocessing import InputType
from secondlook.errors import ClassifierError
from secondlook.imports import import_extra

INPUT_TYPES: dict[str, InputType] = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8"}
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0
QUERY_RETRIES = 2
"""Metadata queries are retried this often, so that a wrong address is reported soon."""

TRANSIENT_STATUSES = ("408", "429", "500", "502", "503", "504")
"""HTTP statuses that may differ at the next attempt."""

STARTUP_STATUSES = ("400", "404")
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
        if (found is None and model is None) or not parts.netloc:
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

    def __str__(self) -> str:
        return f"{self.model!r} at {'https' if self.encrypted else 'http'}://{self.host}"


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


class InferenceClient:
    """A tritonclient for one model. It has its own thread, because gevent binds it to the thread that created it."""

    def __init__(
        self,
        address: Address,
        retrying: RetrySettings,
        *,
        in_flight: int,
        binary: bool | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self.address = address
        self._retrying = retrying
        self._in_flight = in_flight
        self._binary = binary
        self._headers = None if headers is None else dict(headers)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inference-client")
        self._client = self._thread.submit(self._connect).result()
        self._n_requests = 0

    def _connect(self) -> Any:
        ssl = import_extra("gevent.ssl", feature="a remote classifier", extra="remote")
        triton = import_extra("tritonclient.http", feature="a remote classifier", extra="remote")
        encryption = {"ssl": True, "ssl_context_factory": ssl.create_default_context}
        return triton.InferenceServerClient(
            self.address.host,
            concurrency=self._in_flight,
            connection_timeout=self._retrying.timeout,
            network_timeout=self._retrying.timeout,
            **(encryption if self.address.encrypted else {}),
        )

    def get_metadata(self) -> dict[str, Any]:
        """Return the server's description of the model."""
        address = self.address
        found: dict[str, Any] = self._query(
            lambda: self._client.get_model_metadata(address.model, address.version, headers=self._headers)
        )
        return found

    def _supports_binary(self) -> bool:
        """Return whether the server lists the binary tensor extension; every server supports JSON."""
        found: dict[str, Any] = self._query(lambda: self._client.get_server_metadata(headers=self._headers))
        return "binary_tensor_data" in (found.get("extensions") or [])

    def _query(self, send: Callable[[], Result]) -> Result:
        waits = self._retrying.compute_waits(0)[:QUERY_RETRIES]
        return self._thread.submit(self._send_with_retries, send, waits, TRANSIENT_STATUSES).result()

    def infer(self, requests: Sequence[Array], input_name: str, output_name: str) -> list[Array]:
        """Return the outputs in the order of the requests. Arrays [n, ...] -> arrays [n, n_classes]"""
        if self._binary is None:
            self._binary = self._supports_binary()
        outputs = []
        for output in self._thread.submit(self._infer_all, requests, input_name, output_name).result():
            if isinstance(output, ClassifierError):
                raise output
            outputs.append(output)
        return outputs

    def _infer_all(self, requests: Sequence[Array], input_name: str, output_name: str) -> list[Array | ClassifierError]:
        from gevent.pool import Pool  # type: ignore[import-untyped]

        first = self._n_requests + 1
        self._n_requests += len(requests)

        def infer_or_fail(number_and_inputs: tuple[int, Array]) -> Array | ClassifierError:
            number, inputs = number_and_inputs
            waits = self._retrying.compute_waits(first + number)
            try:
                return self._send_with_retries(
                    lambda: self._infer_once(inputs, input_name, output_name),
                    waits,
                    TRANSIENT_STATUSES + STARTUP_STATUSES,
                )
            except ClassifierError as error:
                # Raised here, gevent would print it as a crash; the caller raises it instead.
                return error

        return list(Pool(self._in_flight).map(infer_or_fail, enumerate(requests)))

    def _infer_once(self, inputs: Array, input_name: str, output_name: str) -> Array:
        from tritonclient.http import InferInput, InferRequestedOutput
        from tritonclient.utils import np_to_triton_dtype

        tensor = InferInput(input_name, list(inputs.shape), np_to_triton_dtype(inputs.dtype))
        tensor.set_data_from_numpy(np.ascontiguousarray(inputs), binary_data=self._binary)
        response = self._client.infer(
            self.address.model,
            [tensor],
            model_version=self.address.version,
            outputs=[InferRequestedOutput(output_name, binary_data=self._binary)],
            headers=self._headers,
        )
        values: Array | None = response.as_numpy(output_name)
        if values is None:
            raise ClassifierError(
                f"the response of model {self.address} lacks the output {output_name!r}; check the server."
            )
        return values

    def _send_with_retries(self, send: Callable[[], Result], waits: Sequence[float], statuses: Sequence[str]) -> Result:
        """Send a request; repeat it after each wait if the connection fails or the response has one of `statuses`."""
        from http.client import HTTPException

        import gevent  # type: ignore[import-untyped]
        from tritonclient.utils import InferenceServerException

        failures = (OSError, HTTPException, InferenceServerException)
        for wait in waits:
            try:
                return send()
            except failures as error:
                if isinstance(error, InferenceServerException) and error.status() not in (None, *statuses):
                    raise self._describe_failure(error, attempts=1) from error
            gevent.sleep(wait)
        try:
            return send()
        except failures as error:
            raise self._describe_failure(error, attempts=len(waits) + 1) from error

    def _describe_failure(self, error: Exception, attempts: int) -> ClassifierError:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return ClassifierError(
            f"model {self.address} failed after {attempts} attempt(s): {reason}; "
            "check the address, the model's name and that the server is up, or raise timeout= or retries=."
        )

    def close(self) -> None:
        """Close the connections and stop the thread."""
        if hasattr(self, "_client"):
            self._thread.submit(self._client.close).result()
        self._thread.shutdown()


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
        return np.concatenate(self._client.infer(requests, self._input.name, self._output_name))[: len(inputs)]

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
) -> Classifier:
    """Open a model on a server.

    Parameters
    ----------
    location
        `//HOST:PORT/v2/models/NAME[/versions/VERSION]`, or the address of the server with `model=`.
    options
        Options common to all model schemes.
    model, version
        Name and version of the model, if the address does not contain them.
    output_name
        The output to use if there are several.
    rows_per_request, in_flight
        Images per request, and number of concurrent requests.
    timeout
        Seconds to wait for a connection and for each response.
    retries, seed
        How often a failed request is repeated, after waits that double from 0.25 to 8 seconds and are shortened at
        random with this seed.
    binary
        Send tensors as bytes (True) or as JSON (False); by default as bytes if the server supports it.
    headers
        HTTP headers of every request, such as an authorization.
    """
    options.require_output()
    if min(rows_per_request, in_flight) < 1 or retries < 0 or timeout <= 0:
        raise ClassifierError(
            f"rows_per_request={rows_per_request}, in_flight={in_flight} and timeout={timeout:g} of {options.spec!r} "
            f"must be positive, and retries={retries} must not be negative."
        )
    address = Address.parse(f"{options.scheme}:{location}", model, version, options.spec)
    retrying = RetrySettings(timeout=timeout, retries=retries, seed=seed)
    client = InferenceClient(address, retrying, in_flight=in_flight, binary=binary, headers=headers)
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
        extra="remote",
    )(open_remote)


def _describe_input(metadata: Mapping[str, Any], spec: str) -> ModelInput:
    inputs = metadata.get("inputs") or []
    check_single_input([each["name"] for each in inputs], spec)
    return ModelInput.parse(inputs[0]["name"], inputs[0]["shape"], inputs[0]["datatype"], INPUT_TYPES, spec)


def _parse_n_classes(output: Mapping[str, Any]) -> int | None:
    shape = output.get("shape") or []
    return int(shape[1]) if len(shape) == 2 and int(shape[1]) > 0 else None
