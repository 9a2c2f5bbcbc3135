"""Credentials of remote models: sent with every request, never stored or printed."""

import base64
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from secondlook.errors import ClassifierError

AUTHORIZATION = "Authorization"
URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)", re.IGNORECASE)
HOST_AND_PORT = re.compile(r"(\[[^\]@]*\]|[^:@\[\]]*)(:[0-9]*)?")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
HIDDEN = "***"


def split_credentials(text: str) -> tuple[str, str | None]:
    """Return a spec without the user name and password of its URL, and the authorization that they stand for."""
    found = URL.match(text)
    if found is None:
        return text, None
    credentials, at, host = found["authority"].rpartition("@")
    if not HOST_AND_PORT.fullmatch(host):
        # The text is not repeated: what looks like a port may be the start of a password that contains a slash.
        raise ClassifierError(
            "the URL of a remote model has an invalid host or port (not shown, since it may contain a password); "
            "expected http://HOST:PORT/..., with '/', '?', '#' and '@' percent-encoded in a user name or password."
        )
    if not at:
        return text, None
    user, _, password = credentials.partition(":")
    token = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")
    return f"{text[: found.start('authority')]}{host}{text[found.end() :]}", f"Basic {token}"


def read_header_from_env(variable: str, spec: str) -> tuple[str, str]:
    """Return the name and the value of the HTTP header that an environment variable holds."""
    line = os.environ.get(variable)
    if not line:
        raise ClassifierError(
            f"header_from_env={variable!r} of {spec!r} is not set; "
            "set this environment variable to a whole header, such as 'Authorization: Bearer TOKEN'."
        )
    name, colon, value = line.partition(":")
    if not colon:
        raise ClassifierError(
            f"the environment variable {variable!r} (header_from_env= of {spec!r}) does not hold a header; "
            "expected a name and a value, such as 'Authorization: Bearer TOKEN'."
        )
    return name.strip(), value.strip()


def merge_headers(groups: Iterable[Mapping[str, str]], spec: str) -> dict[str, str]:
    """Return the headers of all groups; messages show their names only."""
    merged: dict[str, str] = {}
    for name, value in ((name, value) for group in groups for name, value in group.items()):
        if not HEADER_NAME.fullmatch(str(name)) or not HEADER_VALUE.fullmatch(str(value)):
            raise ClassifierError(
                f"a header of {spec!r} is invalid (not shown, since it may be secret); expected a name of letters, "
                "digits and hyphens, and a value of one line."
            )
        if str(name).lower() in (known.lower() for known in merged):
            raise ClassifierError(
                f"duplicate header {name!r} for {spec!r}; give it once, in the URL, headers= or header_from_env=."
            )
        merged[str(name)] = str(value)
    return merged


def hide_secrets(text: str, headers: Mapping[str, str]) -> str:
    """Return a text without the values of headers, which a server may repeat in its response."""
    secrets = {part for value in headers.values() for part in (value, value.rpartition(" ")[2]) if part}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
