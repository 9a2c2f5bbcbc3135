"""Requests that fail: a status, a code for programs and a sentence for people."""

import json
from collections.abc import Mapping
from typing import Any

from secondlook.errors import ServingError


class RequestError(ServingError):
    """A request that cannot be served; it becomes the JSON object {"error": {"code": ..., "message": ...}}."""

    def __init__(self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, dict(headers or {})


def describe_request_error(path: str, error: RequestError) -> dict[str, Any]:
    """Return an error as JSON, in the form that the protocol of the address has."""
    if path.startswith("/v2"):
        return {"error": str(error)}
    return {"error": {"code": error.code, "message": str(error)}}


def encode_request_error(path: str, error: RequestError) -> bytes:
    """Return the body of the response to a request that failed."""
    return json.dumps(describe_request_error(path, error)).encode()
