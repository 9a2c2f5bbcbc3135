"""Remote models over the Open Inference Protocol (KServe V2: Triton, KServe, MLServer)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.digests import digest_of
from secondlook.classifiers.inference_client import Address, InferenceClient, Patience
from secondlook.classifiers.preprocessing import InputType
from secondlook.classifiers.schemes import LoadOptions, model_scheme
from secondlook.classifiers.tensor_input import TensorInput, chosen, full_parts, parts, tensor_input
from secondlook.errors import ClassifierError

INPUT_TYPES: dict[str, InputType] = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8"}


class RemoteClassifier(Classifier):
    """A model on a server; a batch is cut into requests, several of which are under way at a time."""

    def __init__(self, client: InferenceClient, statement: LoadOptions, output_name: str | None, rows: int) -> None:
        metadata = client.metadata()
        self._client = client
        self._input = _image_input(metadata, statement.spec)
        outputs = {each["name"]: each for each in metadata.get("outputs") or []}
        self._output_name = chosen(list(outputs), output_name, "output_name", statement.spec)
        self._rows = rows
        address = client.address
        version = address.version or ",".join(metadata.get("versions") or [])
        identity = statement.name or [address.host, address.model, version, self._output_name]
        super().__init__(
            name=statement.shown_name,
            digest=digest_of("remote", identity),
            output=statement.stated_output(),
            preprocessing=statement.preprocessing(self._input.preprocessing(statement.layout, statement.spec)),
            n_classes=_number_of_classes(outputs[self._output_name]),
        )

    def answer(self, images: Array) -> Array:
        """Scores in the order of the images. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        inputs = self.preprocessing.normalize(images)
        requests = parts(inputs, self._rows) if self._input.batch is None else full_parts(inputs, self._input.batch)
        return np.concatenate(self._client.infer(requests, self._input.name, self._output_name))[: len(inputs)]

    def close(self) -> None:
        """Close the connections; the classifier cannot be used afterwards."""
        self._client.close()


def open_remote(
    target: str,
    statement: LoadOptions,
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
    target
        `http(s)://host:port/v2/models/NAME[/versions/VERSION]`, or the server's address with `model=`.
    statement
        What the user states.
    model, version
        The model's name and version where the address does not hold them.
    output_name
        The output that holds the scores, where there are several.
    rows_per_request, in_flight
        Images per request, and requests under way at a time.
    timeout
        Seconds for connecting and for each wait on the network.
    retries, seed
        How often a failed request is sent again, after waits that double from 0.25 to 8 seconds, each cut by a random
        part drawn with `seed`.
    binary
        Send numbers as bytes (True) or as JSON (False); by default as bytes where the server lists that extension.
    headers
        HTTP headers for every request, such as an authorisation.
    """
    statement.stated_output()
    if min(rows_per_request, in_flight) < 1 or retries < 0 or timeout <= 0:
        raise ClassifierError(
            f"rows_per_request={rows_per_request}, in_flight={in_flight} and timeout={timeout:g} of {statement.spec!r} "
            f"must be positive, and retries={retries} not negative."
        )
    address = Address.parsed(target, model, version, statement.spec)
    patience = Patience(timeout=timeout, retries=retries, seed=seed)
    client = InferenceClient(address, patience, in_flight=in_flight, binary=binary, headers=headers)
    try:
        return RemoteClassifier(client, statement, output_name, rows_per_request)
    except BaseException:
        client.close()
        raise


for _scheme in ("http", "https"):
    model_scheme(
        _scheme,
        form=f"{_scheme}://HOST:PORT/v2/models/NAME",
        says="model on a KServe V2 server (Triton, KServe, MLServer); output= must be stated",
        extra="remote",
    )(open_remote)


def _image_input(metadata: Mapping[str, Any], spec: str) -> TensorInput:
    inputs = metadata.get("inputs") or []
    if len(inputs) != 1:
        raise ClassifierError(
            f"the server describes {len(inputs)} inputs for {spec!r}; "
            "a classifier takes one batch of images: describe it in the model's settings on the server."
        )
    return tensor_input(inputs[0]["name"], inputs[0]["shape"], inputs[0]["datatype"], INPUT_TYPES, spec)


def _number_of_classes(output: Mapping[str, Any]) -> int | None:
    shape = output.get("shape") or []
    return int(shape[1]) if len(shape) == 2 and int(shape[1]) > 0 else None
