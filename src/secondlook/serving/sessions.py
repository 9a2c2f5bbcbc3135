"""Browsers that are logged in: rows of the database, so that a restart logs nobody out."""

import hashlib
import secrets
import time
from dataclasses import dataclass, field

import sqlalchemy as sa
from fastapi import Request, Response

from secondlook.serving.database import Database
from secondlook.serving.schema import sessions

SESSION_COOKIE = "secondlook_session"
SESSION_SECONDS = 12 * 3600.0
LONGEST_COOKIE = 200


@dataclass(frozen=True)
class Session:
    """A browser that is logged in."""

    digest: str
    token_id: str
    """The token that it logged in with: the session ends when that is removed."""
    csrf: str = field(repr=False)


class SessionStore:
    """The sessions of a service. The database has only the sha256 of each cookie, so a copy of it lets nobody in."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def start(self, token_id: str) -> tuple[str, Session]:
        """Begin a session of whoever has a token, and return its cookie and itself."""
        cookie = f"{token_id}.{secrets.token_urlsafe(32)}"
        session = Session(_digest(cookie), token_id, secrets.token_urlsafe(32))
        now = time.time()
        values = {"digest": session.digest, "csrf": session.csrf}
        with self._database.write() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.expires_at < now))
            connection.execute(sa.insert(sessions).values(**values, expires_at=now + SESSION_SECONDS))
        return cookie, session

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, if it has not ended."""
        if len(cookie) > LONGEST_COOKIE:
            return None
        query = sa.select(sessions.c.digest, sessions.c.csrf).where(
            sessions.c.digest == _digest(cookie), sessions.c.expires_at >= time.time()
        )
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Session(row.digest, cookie.partition(".")[0], row.csrf)

    def end(self, cookie: str) -> None:
        """End the session of a cookie."""
        with self._database.write() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.digest == _digest(cookie)))


def announce_cookie(request: Request, cookie: str) -> None:
    """Let the page that responds to a request give its browser a session."""
    request.state.session_cookie = cookie


def set_session_cookie(request: Request, response: Response) -> None:
    """Add the cookie of the session that began with this request, if one did.

    Scripts cannot read it, other sites cannot make a browser send it, and over TLS it never travels in the clear.
    """
    cookie = getattr(request.state, "session_cookie", None)
    if cookie is not None:
        secure = request.url.scheme == "https"
        response.set_cookie(SESSION_COOKIE, cookie, httponly=True, samesite="strict", secure=secure, path="/")


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).hexdigest()
