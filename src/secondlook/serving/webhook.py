"""`Webhook`: sends events to a URL in the background."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from threading import Event
from typing import Any
from urllib.parse import unquote

from pydantic_core import to_json
from urllib3.exceptions import LocationParseError
from urllib3.util import Url, make_headers, parse_url

from secondlook.extension import HttpClient, SecondLookError, ServingError

TIMEOUT = 10.0
PAUSES = (1.0, 5.0, 25.0, 125.0)
"""Seconds between the attempts to send an event."""
TEMPORARY_ERRORS = (408, 425, 429, *range(500, 600))

logger = logging.getLogger("secondlook.serving")


class Webhook:
    """Sends events to a URL, one after the other. Only its host is logged, since the rest may be secret."""

    def __init__(self, url: str) -> None:
        try:
            address = parse_url(url)
        except LocationParseError:  # it has the URL in its text
            address = Url()
        if address.host is None or address.scheme not in ("http", "https"):
            raise ServingError("is not a complete URL; expected http:// or https://", argument="webhook")
        encrypted = address.scheme == "https"
        login = make_headers(basic_auth=unquote(address.auth)) if address.auth else {}
        self._client = HttpClient(
            address.host,
            address.port or (443 if encrypted else 80),
            encrypted=encrypted,
            timeout=TIMEOUT,
            headers={"Content-Type": "application/json", **login},
        )
        self._host, self._target = address.host, address.request_uri
        self._executor = ThreadPoolExecutor(1, "secondlook-webhook")
        self._is_closing = Event()

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event soon; failures are logged."""
        if not self._is_closing.is_set():
            self._executor.submit(self._deliver, to_json(event))

    def close(self) -> None:
        """Finish the current request, and drop the other events."""
        self._is_closing.set()
        self._executor.shutdown(cancel_futures=True)
        self._client.close()

    def _deliver(self, body: bytes) -> None:
        for pause in (*PAUSES, None):
            try:
                status = self._client.send("POST", self._target, body=body).status
                reason = None if status < 300 else f"HTTP {status}"
            except (OSError, HTTPException, SecondLookError) as error:
                status, reason = TEMPORARY_ERRORS[0], type(error).__name__
            if reason is not None:
                logger.warning("webhook failed", extra={"host": self._host, "reason": reason})
            if status not in TEMPORARY_ERRORS or pause is None or self._is_closing.wait(pause):
                return
