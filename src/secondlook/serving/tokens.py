"""Access tokens and their roles. Only hashes are stored, in a file in the data folder."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import BinaryIO, Literal

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from pydantic import ValidationError

from secondlook.extension import (
    FrozenRecord,
    ServingError,
    describe_invalid,
    exclusive_lock,
    read_regular_file,
    write_atomically,
)
from secondlook.serving.responses import RequestError

Role = Literal["client", "reviewer", "admin"]
Permission = Literal["decide", "review", "watch", "administer"]

PERMISSIONS: dict[Role, frozenset[Permission]] = {
    "client": frozenset({"decide", "watch"}),
    "reviewer": frozenset({"review", "watch"}),
    "admin": frozenset({"decide", "review", "watch", "administer"}),
}
LOCAL_NAME = "local"
"""Reserved user name on a service without tokens."""
LONGEST_NAME = 100
LONGEST_TOKEN = 200
HASH_PASSES, HASH_KIB = 2, 19 * 1024
"""Cost of a hash, as recommended by OWASP for argon2id."""
MAX_CHECKS = 4
"""Number of hashes computed at once; each takes 19 MiB and a few milliseconds on one core."""


@dataclass(frozen=True)
class Principal:
    """The sender of a request."""

    name: str
    role: Role
    session: str
    """Identifies a browser, or a program by its token; owner of leases in the review queue."""
    csrf: str | None = field(default=None, repr=False)
    """Token that scripts and forms in a browser must send with every change; None for programs."""

    def may(self, permission: Permission) -> bool:
        """Whether the role has a permission."""
        return permission in PERMISSIONS[self.role]


class TokenFileError(ServingError):
    """The token file cannot be read."""


class TokenRecord(FrozenRecord):
    """The stored data of a token."""

    id: str
    name: str
    role: Role
    hash: str
    """argon2id hash of the whole token."""
    created_at: float

    @property
    def principal(self) -> Principal:
        """Principal of a program with this token."""
        return Principal(self.name, self.role, f"token:{self.id}")


class TokenRecords(FrozenRecord):
    """The content of the token file."""

    tokens: tuple[TokenRecord, ...] = ()


class TokenFile:
    """The tokens of a data folder. Changes by other processes apply from the next request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hasher = PasswordHasher(time_cost=HASH_PASSES, memory_cost=HASH_KIB, parallelism=1)
        self._unknown = self._hasher.hash(secrets.token_urlsafe())
        self._key = secrets.token_bytes(32)
        self._verified: dict[bytes, TokenRecord] = {}
        self._checks = BoundedSemaphore(MAX_CHECKS)
        self._lock = Lock()
        self._version: tuple[int, int, int] | None = None
        """Inode, modification time and size of the file when last read."""
        self._records: dict[str, TokenRecord] = {}

    def add(self, name: str, role: Role) -> str:
        """Create a token, and return it; it cannot be shown again. Each review records the name of the token."""
        if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
            raise ServingError(f"invalid name {name!r}; expected 1 to {LONGEST_NAME} printable characters, trimmed.")
        if name == LOCAL_NAME:
            raise ServingError(f"the name {name!r} is reserved for a service without tokens; choose another name.")
        id_ = secrets.token_hex(6)
        token = f"sl_{id_}_{secrets.token_urlsafe(32)}"
        record = TokenRecord(id=id_, name=name, role=role, hash=self._hasher.hash(token), created_at=time.time())
        with self._edit() as records:
            if any(one.name == name for one in records):
                raise ServingError(f"a token for {name!r} exists already; remove it first, or choose another name.")
            records.append(record)
        return token

    def remove(self, name: str) -> None:
        """Remove a token; its requests and sessions are refused from now on."""
        with self._edit() as records:
            found = [one for one in records if one.name == name]
            if not found:
                known = ", ".join(repr(one.name) for one in records) or "none"
                raise ServingError(f"there is no token for {name!r} in {str(self.path)!r}; there are: {known}.")
            records.remove(found[0])

    def check(self, token: str) -> Principal | None:
        """Return the owner of a token; None for a wrong one. All wrong tokens take the same time."""
        if (known := self.recall(token)) is not None:
            return known
        kind, _, rest = token.partition("_")
        id_, separator, _ = rest.partition("_")
        if kind != "sl" or not separator or len(token) > LONGEST_TOKEN or not token.isascii():
            return None  # no token has this format, so a quick response reveals nothing
        record = self.read().get(id_)
        if not self._checks.acquire(blocking=False):  # limits memory and time for wrong tokens
            message = "too many tokens are being checked; try again in a second."
            raise RequestError(429, "busy", message, headers={"Retry-After": "1"})
        try:
            self._hasher.verify(self._unknown if record is None else record.hash, token)
        except (VerificationError, InvalidHashError):
            return None
        finally:
            self._checks.release()
        assert record is not None, "the hash for unknown ids is of a random token"
        self._verified[self._digest(token)] = record
        return record.principal

    def recall(self, token: str) -> Principal | None:
        """Return the owner of a token that was checked before and still exists; takes microseconds."""
        records = self.read()
        record = self._verified.get(self._digest(token))
        return None if record is None or records.get(record.id) != record else record.principal

    def _digest(self, token: str) -> bytes:
        """Return the cache key of a token: useless without the secret key of this process."""
        return hmac.digest(self._key, token.encode("utf-8", "surrogatepass"), hashlib.sha256)

    @contextmanager
    def _edit(self) -> Iterator[list[TokenRecord]]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive_lock(self.path.with_suffix(".lock")):
            records = [*self.read().values()]
            yield records
            content = TokenRecords(tokens=tuple(records)).model_dump_json(indent=2).encode() + b"\n"

            def write_private(file: BinaryIO) -> None:
                Path(file.name).chmod(0o600)  # before the first byte is written
                file.write(content)

            write_atomically(self.path, write_private, clean=True)

    def read(self) -> dict[str, TokenRecord]:
        """Return all tokens by id, oldest first; reads the file only after a change."""
        try:
            status = self.path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            with self._lock:
                if version != self._version:
                    found = TokenRecords.model_validate_json(read_regular_file(self.path)).tokens
                    self._records, self._version = {one.id: one for one in found}, version
                return self._records
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise TokenFileError(f"cannot read the tokens in {str(self.path)!r}: {error.strerror}.") from None
        except ValidationError as error:
            reason = f"{str(self.path)!r} is not a token file ({describe_invalid(error)})"
            raise TokenFileError(reason, repair="restore it, or remove it and add the tokens again") from None
