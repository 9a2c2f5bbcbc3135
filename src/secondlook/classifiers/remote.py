"""Remote models over the Open Inference Protocol (KServe V2: Triton, KServe, MLServer)."""

import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
from pydantic_core import from_json

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier, digest_values, split_batches, split_padded
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.preprocessing import InputType, ModelInput, choose_output_name
from secondlook.errors import ANY, ClassifierError, Repair, shorten_reason

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0
"""Minimum and maximum wait before a retry, in seconds; waits double, with random jitter of up to half."""

MAX_JSON_VALUES = 2**20
"""Enough for 32 images x 21,843 classes; a parsed value takes up to 25 times the memory of its text."""
LONGEST_NAME = 256
HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header with the length of the JSON before binary tensors."""
TRANSIENT_STATUSES: tuple[int, ...] = (408, 429, 500, 502, 503, 504)
"""HTTP statuses of temporary failures."""

INPUT_TYPES: dict[str, InputType] = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8"}
DATATYPES: dict[str, str] = {dtype: datatype for datatype, dtype in INPUT_TYPES.items()}
OUTPUT_TYPES = {
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
}
"""NumPy types of the numbers in responses; NumPy has no bfloat16, which is the upper half of a float32."""

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
MODEL_PATH = re.compile(r"(?P<base>.*?)/?v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?/?")
CHECK_SERVER = "check the address, the model's name and that the server is up, or raise {timeout} or {retries}"
Result = TypeVar("Result")


class InferenceClient:
    """A client for the model at a URL, with concurrent requests; any failure is a `ClassifierError`."""

    def __init__(
        self, url: str, spec: str, *, timeout: float, headers: Mapping[str, str], retries: int, in_flight: int
    ) -> None:
        from secondlook.classifiers.http_client import HttpClient  # loads urllib3

        parts = urlsplit(url)
        found = MODEL_PATH.fullmatch(parts.path)
        try:
            is_host = bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port above 65535
            is_host = False
        if found is None or not is_host:
            form = f"{parts.scheme}://HOST:PORT/v2/models/NAME"
            raise ClassifierError(f"{spec!r} does not name a model; expected {form}, complete the address.")
        base, model, version = found["base"].rstrip("/"), found["model"], found["version"] or ""
        self.identity = (parts.netloc + base, model, version)
        """Host with port and base path, name and version of the model."""
        self._server_path = quote(base, safe="/%") + "/v2"
        version_path = f"/versions/{quote(version)}" if version else ""
        self._model_path = f"{self._server_path}/models/{quote(model)}{version_path}"
        self._described = f"model {model!r} at {parts.scheme}://{parts.netloc}{base}"
        is_encrypted = parts.scheme == "https"
        port = parts.port or (443 if is_encrypted else 80)
        self._http = HttpClient(parts.hostname or "", port, encrypted=is_encrypted, timeout=timeout, headers=headers)
        self._retries = retries
        self._is_binary: bool | None = None
        self._threads = ThreadPoolExecutor(max_workers=in_flight, thread_name_prefix="inference-client")

    def get_metadata(self) -> dict[str, Any]:
        """Return the server's description of the model: its inputs, outputs and versions."""
        return self._send(_parse_model, method="GET", path=self._model_path)

    def infer(self, requests: Sequence[Array], input_name: str, output_name: str) -> list[Array]:
        """Return the outputs in the order of the requests. Arrays [n, ...] -> arrays [n, n_classes]"""
        if self._is_binary is None:  # every server supports JSON
            self._is_binary = self._send(_lists_binary_tensors, method="GET", path=self._server_path)
        is_binary, stop = self._is_binary, threading.Event()
        request = {"method": "POST", "path": f"{self._model_path}/infer"}

        def send(inputs: Array) -> Array:
            headers, body = _format_request(inputs, input_name, output_name, is_binary)
            parse = partial(_parse_output, output_name=output_name, n_images=len(inputs))
            return self._send(parse, stop, headers=headers, body=body, **request)

        try:
            return list(self._threads.map(send, requests))
        finally:
            stop.set()  # After a failure, the other requests are not repeated.

    def _send(
        self, parse: "Callable[[BaseHTTPResponse], Result]", stop: threading.Event | None = None, **request: Any
    ) -> Result:
        """Send a request; retry failed connections and transient statuses, for inferences until `stop`."""
        # A server that has just started returns 400 or 404 until its models are loaded.
        retries, statuses, reason = self._retries, (*TRANSIENT_STATUSES, 400, 404), ""
        if stop is None:  # report a wrong address soon
            retries, statuses, stop = min(retries, 2), TRANSIENT_STATUSES, threading.Event()
        for attempt in range(1, retries + 2):
            wait = min(FIRST_WAIT * 2.0 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.5, 1)
            try:
                response = self._http.send(**request)
            except (OSError, HTTPException) as error:
                reason, is_transient = shorten_reason(error), True
            else:
                if response.status == 200:
                    return self._parse(parse, response)
                reason = f"[{response.status}] {_describe_status(response)}"
                is_transient = response.status in statuses
                wait = max(wait, self._http.parse_retry_after(response))
            if not is_transient or attempt > retries or stop.wait(wait):
                break
        repair = Repair(CHECK_SERVER, timeout=ANY, retries=ANY)
        raise self._fail(f"failed after {attempt} attempt(s): {shorten_reason(ValueError(reason))}", repair)

    def _parse(self, parse: "Callable[[BaseHTTPResponse], Result]", response: "BaseHTTPResponse") -> Result:
        try:
            return parse(response)
        except ClassifierError:
            raise
        except Exception as error:
            sent = f"{_describe_body(response)}): {shorten_reason(error)}"
            repair = "check the address, and whether the response comes from a proxy"
            raise self._fail(f"does not follow the Open Inference Protocol ({sent}", repair) from error

    def _fail(self, problem: str, repair: str | Repair) -> ClassifierError:
        return ClassifierError(self._http.hide_secrets(f"{self._described} {problem}"), repair=repair)

    def close(self) -> None:
        """Wait for pending requests, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._http.close()


class RemoteClassifier(Classifier):
    """A model on a server; a batch is split into concurrent requests."""

    def __init__(
        self, client: InferenceClient, options: LoadOptions, output_name: str | None, rows_per_request: int
    ) -> None:
        metadata = client.get_metadata()
        inputs = [(each["name"], each["shape"], each["datatype"]) for each in metadata["inputs"] or []]
        self._input = ModelInput.parse(inputs, INPUT_TYPES, options.spec)
        outputs = {each["name"]: each["shape"] for each in metadata["outputs"]}
        self._output_name = choose_output_name(list(outputs), output_name, options.spec)
        shape = outputs[self._output_name]
        self._client, self._rows_per_request = client, rows_per_request
        host, model, version = client.identity
        version = version or ",".join(metadata.get("versions") or [])
        identity = options.name or [host, model, version, self._output_name]
        super().__init__(
            name=options.display_name,
            digest=digest_values("remote", identity),
            output=options.require_output(),
            preprocessing=options.override(self._input.make_preprocessing(options.layout, options.spec)),
            n_classes=shape[1] if len(shape) == 2 and shape[1] > 0 else None,
        )

    def forward(self, images: Array) -> Array:
        """Return the outputs in the order of the images. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        inputs = self.preprocessing.normalize(images)
        fixed = self._input.batch_size
        requests = split_batches(inputs, self._rows_per_request) if fixed is None else split_padded(inputs, fixed)
        outputs = self._client.infer(requests, self._input.name, self._output_name)
        shapes = sorted({output.shape[1:] for output in outputs})
        if len(shapes) > 1:
            raise ClassifierError(f"classifier {self.name!r} returned rows of several shapes for one batch: {shapes}.")
        return np.concatenate(outputs)[: len(inputs)]

    def close(self) -> None:
        """Close the connections; the classifier cannot be used afterwards."""
        self._client.close()


def open_remote(
    location: str,
    options: LoadOptions,
    *,
    output_name: str | None = None,
    rows_per_request: int = 32,
    in_flight: int = 4,
    timeout: float = 30.0,
    retries: int = 8,
    headers: Mapping[str, str] | None = None,
    header_from_env: str | None = None,
) -> Classifier:
    """Open the model of `//HOST:PORT/v2/models/NAME[/versions/VERSION]`.

    Credentials from the URL, `headers` and the environment variable `header_from_env` are sent, but never stored.
    """
    options.require_output()
    for name, value in (("rows_per_request", rows_per_request), ("in_flight", in_flight), ("timeout", timeout)):
        if value <= 0:
            raise ClassifierError(f"of {options.spec!r} must be positive", argument=name, value=value)
    if retries < 0:
        raise ClassifierError(f"of {options.spec!r} must not be negative", argument="retries", value=retries)
    given = [] if options.authorization is None else [("Authorization", options.authorization)]
    given += (headers or {}).items()
    given += [] if header_from_env is None else [_read_header(header_from_env, options.spec)]
    client = InferenceClient(
        f"{options.scheme}:{location}",
        options.spec,
        timeout=timeout,
        headers=_check_headers(given, options.spec),
        retries=retries,
        in_flight=in_flight,
    )
    try:
        return RemoteClassifier(client, options, output_name, rows_per_request)
    except BaseException:
        client.close()
        raise


for _scheme in ("http", "https"):
    model_scheme(
        _scheme,
        form=f"{_scheme}://HOST:PORT/v2/models/NAME",
        summary="model on a KServe V2 server (Triton, KServe, MLServer); ?output= is required",
    )(open_remote)


def _read_header(variable: str, spec: str) -> tuple[str, str]:
    """Return the name and value of the HTTP header in an environment variable."""
    name, colon, value = os.environ.get(variable, "").partition(":")
    if not colon:
        fault = f"of {spec!r} does not contain a complete header like 'Authorization: Bearer TOKEN'"
        raise ClassifierError(fault, argument="header_from_env", value=variable, repair="set this environment variable")
    return name.strip(), value.strip()


def _check_headers(headers: Iterable[tuple[str, str]], spec: str) -> dict[str, str]:
    """Validate headers and return them by name; messages show only their names."""
    checked: dict[str, str] = {}
    for name, value in headers:
        if not HEADER_NAME.fullmatch(str(name)) or not HEADER_VALUE.fullmatch(str(value)):
            fault = f"a header of {spec!r} is invalid (not shown, since it may be secret)"
            raise ClassifierError(fault, repair="expected a name of letters, digits and hyphens, and one line as value")
        if str(name).lower() in map(str.lower, checked):
            repair = Repair("give it once, in the URL or in {headers}", headers=ANY)
            raise ClassifierError(f"duplicate header {name!r} for {spec!r}", repair=repair)
        checked[str(name)] = str(value)
    return checked


# --- The protocol: any exception of a parsing function means an invalid response. ---


def _format_request(inputs: Array, input_name: str, output_name: str, is_binary: bool) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of an inference request, with the inputs as bytes or as JSON."""
    tensor: dict[str, Any] = {"name": input_name, "shape": inputs.shape, "datatype": DATATYPES[inputs.dtype.name]}
    outputs = [{"name": output_name, "parameters": {"binary_data": is_binary}}]
    if not is_binary:
        tensor["data"] = inputs.ravel().tolist()
        return {"Content-Type": "application/json"}, json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    content = np.ascontiguousarray(inputs, inputs.dtype.newbyteorder("<")).tobytes()
    tensor["parameters"] = {"binary_data_size": len(content)}
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}, head + content


def _parse_output(response: "BaseHTTPResponse", output_name: str, n_images: int) -> Array:
    """Return the named output of an inference response, an array [n_images, ...]."""
    body, length = response.data, response.headers.get(HEADER_LENGTH)
    end = len(body) if length is None else int(length)
    if not 0 <= end <= len(body):
        raise ValueError(f"{HEADER_LENGTH} is {end}, but the body has {len(body)} bytes")
    for output in _parse_object(response, end)["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        content = None if size is None else body[end : end + _check_count(size)]
        if output["name"] == output_name:
            if content is not None and len(content) != size:
                raise ValueError(f"output {output_name!r} has binary_data_size {size}, but {len(content)} bytes follow")
            return _parse_tensor(output, content, n_images)
        end += size or 0
    raise ValueError(f"it lacks the output {output_name!r}")


def _parse_tensor(tensor: Mapping[str, Any], content: bytes | None, n_images: int) -> Array:
    """Return the values of a tensor, from `content` or, if that is None, from its description."""
    datatype, shape = tensor["datatype"], [_check_count(size) for size in tensor["shape"]]
    if datatype not in OUTPUT_TYPES or (datatype == "BF16" and content is None):
        raise ValueError(f"its output has datatype {datatype!r}; expected one of {', '.join(OUTPUT_TYPES)}")
    if not shape or shape[0] != n_images:
        raise ValueError(f"its output has shape {shape} for {n_images} images")
    if content is None:
        values = np.asarray(tensor["data"])
        if values.dtype.kind not in "fiu":
            raise ValueError("its data are not numbers")
        with np.errstate(over="ignore"):  # Infinity is rejected with all outputs.
            values = values.astype(OUTPUT_TYPES[datatype], casting="same_kind")
    else:
        values = np.frombuffer(content, OUTPUT_TYPES[datatype])
        if datatype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(shape)


def _check_count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{shorten_reason(ValueError(repr(value)))} is not a size")
    return value


def _parse_model(response: "BaseHTTPResponse") -> dict[str, Any]:
    """Return the inputs, outputs and versions of a model."""
    document = _parse_object(response)
    tensors = {key: [_parse_description(each) for each in document.get(key) or []] for key in ("inputs", "outputs")}
    return {**tensors, "versions": [_check_name(each) for each in document.get("versions") or []]}


def _parse_description(tensor: Any) -> dict[str, Any]:
    shape = [] if tensor.get("shape") is None else list(tensor["shape"])
    if not all(type(size) is int for size in shape):
        raise ValueError("the shape of a tensor does not consist of integers")
    return {"name": _check_name(tensor["name"]), "datatype": _check_name(tensor["datatype"]), "shape": shape}


def _check_name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise ValueError(f"a name, datatype or version is not a string of at most {LONGEST_NAME} characters")
    return value


def _lists_binary_tensors(response: "BaseHTTPResponse") -> bool:
    return "binary_tensor_data" in list(_parse_object(response).get("extensions") or [])


def _parse_object(response: "BaseHTTPResponse", end: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a response, up to the byte `end`."""
    # Compression was not requested, and a small compressed response can decompress to any size.
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ValueError(f"it is compressed ({encoding})")
    document = _load_json(response.data[:end])
    if not isinstance(document, dict):
        raise ValueError(f"it is a JSON {type(document).__name__}, not an object")
    return document


def _load_json(content: bytes) -> Any:
    """Parse JSON with a limited number of values, counted by their commas."""
    if content.count(b",") >= MAX_JSON_VALUES:
        fault = f"the server sent more than {MAX_JSON_VALUES:,} values as JSON for one request"
        raise ClassifierError(fault, repair=Repair("lower {rows_per_request}", rows_per_request=ANY))
    return from_json(content)


def _describe_status(response: "BaseHTTPResponse") -> str:
    """Return the server's message for a failed request, or a description of the response."""
    if 300 <= response.status < 400:
        target = response.headers.get("Location", "")[:LONGEST_NAME]
        return f"redirects to {target!r}, which is not followed"
    try:
        reason = _load_json(response.data)["error"]
    except (ClassifierError, ValueError, TypeError, LookupError, RecursionError):
        reason = None
    return " ".join(reason.split()) if isinstance(reason, str) else _describe_body(response)


def _describe_body(response: "BaseHTTPResponse") -> str:
    """Return status, content type, size and first bytes of a response."""
    kind = response.headers.get("Content-Type", "no content type")[:LONGEST_NAME]
    return f"status {response.status}, {kind}, {len(response.data)} bytes, starting with {response.data[:60]!r}"
