"""`Client`: get decisions from a service over HTTP, with requests that are safe to retry."""

import os
import random
import re
import socket
import ssl
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import repeat
from json import loads
from typing import Any, Self, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError
from urllib3 import BaseHTTPResponse

from secondlook.extension import (
    ANY,
    ClassifierError,
    HttpClient,
    Repair,
    ServingError,
    UnreadableImageError,
    encode_png,
    expand_path,
    is_number,
    read_image,
)
from secondlook.serving.responses import RequestError, ServedDecision

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
"""Seconds before the first retry, and at most before any, if the service sends no `Retry-After`."""
RETRIED_STATUSES = (429, 502, 503, 504)
"""The service is busy, starting or stopping, or a proxy cannot reach it."""
DECISION, STATUS = TypeAdapter(ServedDecision), TypeAdapter(dict[str, Any])
Parsed = TypeVar("Parsed")
MAX_IN_FLIGHT = 16
"""Requests that `decide_many` sends at once; the service batches them."""


class Client:
    """Client of a service that decides about images; thread-safe.

    The client retries a request until `timeout` if the service is busy, restarting or unreachable. Each image has an
    id, so the service decides about it only once.

    Parameters
    ----------
    url
        Address of the service, e.g. "http://127.0.0.1:8000".
    token
        Token of the client, if the service has tokens.
    timeout
        Seconds after which a call gives up, including retries; per image for several images.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        if not is_number(timeout) or timeout <= 0:
            raise ServingError("is not a number of seconds above 0", argument="timeout", value=timeout)
        parts = parse_address(url)
        encrypted = parts.scheme == "https"
        self._base, self._timeout = quote(parts.path.rstrip("/"), safe="/%"), timeout
        self.url = f"{parts.scheme}://{parts.netloc}{self._base}"
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", str(token)):
            repair = "expected the text printed when it was created"
            raise ServingError("is not a token (not shown)", argument="token", repair=repair)
        port, headers = parts.port or (443 if encrypted else 80), {"Authorization": f"Bearer {token}"} if token else {}
        self._http = HttpClient(parts.hostname or "", port, encrypted=encrypted, timeout=timeout, headers=headers)

    def decide(self, image: object, id: str | None = None) -> ServedDecision:  # noqa: A002 - the word of the protocol
        """Return the decision about one image.

        Parameters
        ----------
        image
            A path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] or a torch tensor [C, H, W].
            Files are sent unchanged, pixels as 8-bit PNG files.
        id
            Unique id of the image. If the service has already decided about it, that decision is returned. Reusing the
            id of another image is an error.
        """
        content, name = encode_image(image)
        query = {"id": uuid.uuid4().hex if id is None else check_text(id), **({} if name is None else {"name": name})}
        return self._parse(DECISION, self._send("POST", f"/v1/decide?{urlencode(query)}", content))

    def decide_many(self, images: Iterable[object], ids: Sequence[str] | None = None) -> list[ServedDecision]:
        """Return the decisions about several images, in their order; see `decide`.

        With `ids`, a failed call can be repeated: earlier decisions are returned unchanged.
        """
        images = list(images)
        if ids is not None and len(ids) != len(images):
            repair = Repair("pass one for each in {ids}", ids=ANY)
            raise ServingError(f"{len(images)} images have {len(ids)} ids", repair=repair)
        threads = ThreadPoolExecutor(max(1, min(MAX_IN_FLIGHT, len(images))), thread_name_prefix="secondlook-client")
        try:
            return list(threads.map(self.decide, images, repeat(None) if ids is None else ids))
        finally:
            threads.shutdown(cancel_futures=True)  # after a failure, the other images are not sent

    def get(self, id: str) -> ServedDecision:  # noqa: A002
        """Return the decision about an image sent before, with its review."""
        return self._parse(DECISION, self._send("GET", f"/v1/decisions/{quote(check_text(id), safe='')}"))

    def status(self) -> dict[str, Any]:
        """Return the numbers of the dashboard."""
        return self._parse(STATUS, self._send("GET", "/v1/status"))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def _send(self, method: str, path: str, body: bytes | None = None) -> BaseHTTPResponse:
        """Send a request, retrying while the service is busy or unreachable; return the response with status 200."""
        deadline, longest = time.monotonic() + self._timeout, FIRST_WAIT
        kind = {} if body is None else {"Content-Type": "application/octet-stream"}
        while True:
            wait, left = 0.0, max(0.001, deadline - time.monotonic())
            try:
                response = self._http.send(method, f"{self._base}{path}", headers=kind, body=body, timeout=left)
                if response.status == 200 and not response.data:  # the connection was lost between two headers
                    raise ConnectionError("an empty response")
            except (ssl.SSLCertVerificationError, socket.gaierror) as error:
                raise self._unreachable(error, Repair("check {url}", url=ANY)) from error
            except (OSError, HTTPException) as error:
                repair = Repair("check {url} and that it runs, or raise {timeout}", url=ANY, timeout=ANY)
                failure = self._unreachable(error, repair)
            except ClassifierError as error:  # more bytes than allowed
                raise self._invalid("more than 32 MB") from error
            else:
                if response.status == 200:
                    return response
                failure = self._describe_failure(response)
                if response.status not in RETRIED_STATUSES:
                    raise failure
                wait = self._http.parse_retry_after(response)
            # Random jitter, so that refused clients do not all retry at once.
            seconds = wait * random.uniform(1.0, 1.1) or longest * random.uniform(0.5, 1.0)
            if time.monotonic() + seconds > deadline:
                raise failure
            time.sleep(seconds)
            longest = min(2 * longest, LONGEST_WAIT)

    def _parse(self, kind: TypeAdapter[Parsed], response: BaseHTTPResponse) -> Parsed:
        try:
            return kind.validate_json(response.data)
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its type"
            raise self._invalid(f"an unexpected response (see {where[:50]})") from None

    def _describe_failure(self, response: BaseHTTPResponse) -> ServingError:
        try:
            error = loads(response.data)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (ValueError, TypeError, LookupError, RecursionError):  # a proxy sent something else
            code, message = "", ""
        text = " ".join(message.split()) or f"status {response.status}"
        described = f"the service at {self.url} refused the request: {text.rstrip('.')}."
        return RequestError(response.status, code, self._http.hide_secrets(described))

    def _unreachable(self, error: Exception, repair: Repair) -> ServingError:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        described = f"the service at {self.url} did not respond ({reason})"
        return ServingError(self._http.hide_secrets(described), repair=repair)

    def _invalid(self, fault: str) -> ServingError:
        repair = Repair("check that {url} is the address of a secondlook service", url=ANY)
        return ServingError(f"the service at {self.url} sent {fault}", repair=repair)


def parse_address(url: str) -> SplitResult:
    """Parse the address of a service; it may include a path."""
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except (ValueError, AttributeError, TypeError):  # a port above 65535; not a string
        parts, has_port = urlsplit(""), False
    is_plain = parts.username is None and not parts.query and not parts.fragment  # URLs end up in logs
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port or not is_plain:
        repair = Repair("expected http://HOST:PORT or https://HOST:PORT, with a token as {token}", token=ANY)
        fault = "is not the address of a service (not shown, as it may contain a password)"
        raise ServingError(fault, argument="url", repair=repair)
    return parts


def check_text(id_: str) -> str:
    """Return an id, after checking that it is a string that UTF-8 can encode."""
    try:
        id_.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ServingError(f"id {id_!r} is not text; pass a string.") from None
    return id_


def encode_image(image: object) -> tuple[bytes, str | None]:
    """Return an image of any kind as the bytes of a file, and its file name or None."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image), None
    if isinstance(image, str | os.PathLike):
        path = expand_path(os.fsdecode(image))
        try:
            return path.read_bytes(), path.name.encode(errors="replace").decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnreadableImageError(str(path), f"the file cannot be opened ({reason})") from error
    return encode_png(read_image(image)), None
