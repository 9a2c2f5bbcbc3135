"""The client of a KServe V2 server: requests that are repeated until answered, several under way at a time."""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import ClassifierError, MissingExtraError

FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0
PASSING = ("408", "429", "500", "502", "503", "504")
"""Answers that another attempt may change."""

LOADING = ("400", "404")
"""What a server says that has just started and has not loaded its models yet."""

MODEL_PATH = re.compile(r"(?P<base>.*?)/?v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?/?")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Address:
    """Where a model is: host with port and base path, name, version, and whether the way is encrypted."""

    host: str
    model: str
    version: str
    encrypted: bool

    @classmethod
    def parsed(cls, url: str, model: str | None, version: str | None, spec: str) -> "Address":
        """Return the address in a URL that holds the model's path, or with the model's name beside it."""
        parts = urlsplit(url)
        found = MODEL_PATH.fullmatch(parts.path)
        if (found is None and model is None) or not parts.netloc:
            raise ClassifierError(
                f"{spec!r} does not name a model; write {parts.scheme}://HOST:PORT/v2/models/NAME, or add ?model=NAME."
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
class Patience:
    """How long to wait for an answer, and how often to ask again."""

    timeout: float
    retries: int
    seed: int

    def waits(self, request: int) -> list[float]:
        """Seconds before each repetition: doubling, and cut by up to half at random so that requests spread out."""
        longest = np.minimum(FIRST_WAIT * 2.0 ** np.arange(self.retries), LONGEST_WAIT)
        cut = np.random.default_rng((self.seed, request)).uniform(0.5, 1, self.retries)
        return [float(wait) for wait in longest * cut]


class InferenceClient:
    """A tritonclient of one model, in a thread of its own, because gevent ties it to the thread it began in."""

    def __init__(
        self,
        address: Address,
        patience: Patience,
        *,
        in_flight: int,
        binary: bool | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self.address = address
        self._patience = patience
        self._in_flight = in_flight
        self._binary = binary
        self._headers = None if headers is None else dict(headers)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inference-client")
        self._client = self._thread.submit(self._connect).result()
        self._requests = 0

    def _connect(self) -> Any:
        try:
            import gevent.ssl  # type: ignore[import-untyped]
            from tritonclient.http import InferenceServerClient
        except ImportError as error:
            raise MissingExtraError("a remote classifier", "tritonclient[http]", "remote") from error
        encryption = {"ssl": True, "ssl_context_factory": gevent.ssl.create_default_context}
        return InferenceServerClient(
            self.address.host,
            concurrency=self._in_flight,
            connection_timeout=self._patience.timeout,
            network_timeout=self._patience.timeout,
            **(encryption if self.address.encrypted else {}),
        )

    def metadata(self) -> dict[str, Any]:
        """Return what the server says about the model; a wrong address is said soon, after two repetitions."""

        def ask() -> dict[str, Any]:
            found: dict[str, Any] = self._client.get_model_metadata(
                self.address.model, self.address.version, headers=self._headers
            )
            return found

        return self._asked_soon(ask)

    def _takes_bytes(self) -> bool:
        """Tell whether the server lists the extension for numbers as bytes; JSON is what every server takes."""
        about: dict[str, Any] = self._asked_soon(lambda: self._client.get_server_metadata(headers=self._headers))
        return "binary_tensor_data" in (about.get("extensions") or [])

    def _asked_soon(self, ask: Callable[[], Result]) -> Result:
        return self._thread.submit(self._until_answered, ask, self._patience.waits(0)[:2], PASSING).result()

    def infer(self, requests: Sequence[Array], input_name: str, output_name: str) -> list[Array]:
        """Answers to the requests, in their order. Arrays [n, ...] -> arrays [n, n_classes]"""
        if self._binary is None:
            self._binary = self._takes_bytes()
        answers = []
        for answer in self._thread.submit(self._infer_all, requests, input_name, output_name).result():
            if isinstance(answer, ClassifierError):
                raise answer
            answers.append(answer)
        return answers

    def _infer_all(self, requests: Sequence[Array], input_name: str, output_name: str) -> list[Array | ClassifierError]:
        from gevent.pool import Pool  # type: ignore[import-untyped]

        first = self._requests + 1
        self._requests += len(requests)

        def answered(number_and_rows: tuple[int, Array]) -> Array | ClassifierError:
            number, rows = number_and_rows
            waits = self._patience.waits(first + number)
            try:
                return self._until_answered(
                    lambda: self._infer_once(rows, input_name, output_name), waits, PASSING + LOADING
                )
            except ClassifierError as error:
                # Raised here, gevent would print it as a crash; the caller raises it instead.
                return error

        return list(Pool(self._in_flight).map(answered, enumerate(requests)))

    def _infer_once(self, rows: Array, input_name: str, output_name: str) -> Array:
        from tritonclient.http import InferInput, InferRequestedOutput
        from tritonclient.utils import np_to_triton_dtype

        tensor = InferInput(input_name, list(rows.shape), np_to_triton_dtype(rows.dtype))
        tensor.set_data_from_numpy(np.ascontiguousarray(rows), binary_data=self._binary)
        result = self._client.infer(
            self.address.model,
            [tensor],
            model_version=self.address.version,
            outputs=[InferRequestedOutput(output_name, binary_data=self._binary)],
            headers=self._headers,
        )
        answers: Array | None = result.as_numpy(output_name)
        if answers is None:
            raise ClassifierError(
                f"model {self.address} answered without its output {output_name!r}; check the server."
            )
        return answers

    def _until_answered(self, ask: Callable[[], Result], waits: Sequence[float], passing: tuple[str, ...]) -> Result:
        import gevent
        from tritonclient.utils import InferenceServerException

        failures = (OSError, HTTPException, InferenceServerException)
        for wait in waits:
            try:
                return ask()
            except failures as error:
                if isinstance(error, InferenceServerException) and error.status() not in (None, *passing):
                    raise self._failure(error, attempts=1) from error
            gevent.sleep(wait)
        try:
            return ask()
        except failures as error:
            raise self._failure(error, attempts=len(waits) + 1) from error

    def _failure(self, error: Exception, attempts: int) -> ClassifierError:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return ClassifierError(
            f"model {self.address} did not answer in {attempts} attempt(s): {reason}; "
            "check the address, the model's name and that the server is up (timeout= and retries= set the patience)."
        )

    def close(self) -> None:
        """Close the connections and end the thread."""
        if hasattr(self, "_client"):
            self._thread.submit(self._client.close).result()
        self._thread.shutdown()
