"""The database of the service: SQLite in the data folder, or PostgreSQL shared by several instances.

Times are seconds since 1970, UTC.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa

from secondlook.extension import MissingExtraError, ServingError

DATABASE_FILE = "service.db"
SCHEMA_VERSION = "4"
BUSY_SECONDS = 30
"""Timeout for the write lock, which another process may hold."""
POOL_SECONDS = 10
"""Timeout for a free connection of this process."""
SILENT_SECONDS = 60
"""Timeout of silent PostgreSQL connections. The server also ends a transaction that is idle for longer, so a frozen
instance does not block the others."""
POSTGRESQL_SETTINGS = {
    "lock_timeout": f"{BUSY_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{SILENT_SECONDS}s",
    "synchronous_commit": "on",  # with the server default off, a crash could lose acknowledged decisions
}
SQLITE_SETTINGS = (
    "PRAGMA journal_mode(WAL)",
    "PRAGMA synchronous(FULL)",
    "PRAGMA foreign_keys(ON)",
    "PRAGMA secure_delete(ON)",  # overwrite deleted images
)
BUSY_STATES = ("08", "53300", "55P03", "57")
"""SQLSTATE codes of a PostgreSQL server that is starting, stopping or busy."""
WRITE_LOCK = 7_305_461_903
"""Key of the PostgreSQL lock that serializes the transactions of all instances."""
MAX_IDS = 500
"""Maximum number of ids in one query; databases limit it."""

Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite numbers rows only if the column type is INTEGER."""

metadata = sa.MetaData()

settings = sa.Table(
    "settings",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""Schema version, and the random seed of the audits."""

deployments = sa.Table(
    "deployments",
    metadata,
    sa.Column("number", Number, primary_key=True),
    sa.Column("checksum", sa.Text, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("audit", sa.Double),
    sa.Column("reviewer_error", sa.Double, nullable=False, default=0.0),
    sa.Column("double_review", sa.Double, nullable=False, default=0.0),
    sa.Column("deployed_at", sa.Double, nullable=False),
)
"""All policies that were ever in force, as JSON, oldest first; `audit` is the fraction of accepted images to review,
`reviewer_error` the largest error rate of reviewers, `double_review` the fraction of images for two reviewers."""

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("number", Number, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("deployment", sa.ForeignKey("deployments.number"), nullable=False, index=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("name", sa.Text),
    sa.Column("label", sa.Integer, nullable=False),
    sa.Column("labels", sa.JSON),
    sa.Column("class_name", sa.Text),
    sa.Column("confidence", sa.Double, nullable=False),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("accept", sa.Boolean, nullable=False),
    sa.Column("familiarity", sa.Double),
    sa.Column("rejection", sa.Text),
    sa.Column("looks", sa.Integer, nullable=False),
    sa.Column("first_look", sa.Double, nullable=False),
    sa.Column("disagreement", sa.Double),
    sa.Column("audit", sa.Boolean, nullable=False),
    sa.Column("audit_probability", sa.Double),
    sa.Column("decided_at", sa.Double, nullable=False, index=True),
)
"""One row per image, never changed. `number` is the order of the stream, `digest` the sha256 of the image as received,
`name` its file name, if any, `labels` the top-k classes if k is above 1."""

reviews = sa.Table(
    "reviews",
    metadata,
    sa.Column("number", sa.ForeignKey("decisions.number"), primary_key=True),
    sa.Column("audit", sa.Boolean, nullable=False),
    sa.Column("place", sa.Double, nullable=False),
    sa.Column("likely", sa.JSON, nullable=False),
    sa.Column("views", sa.JSON, nullable=False),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_until", sa.Double),
    sa.Column("skips", sa.Integer, nullable=False, default=0),
    sa.Column("expired", sa.Boolean, nullable=False, default=False),
    sa.Column("label", sa.Integer),
    sa.Column("reviewer", sa.Text),
    sa.Column("reviewed_at", sa.Double),
    sa.Column("comment", sa.Text),
    sa.Column("double", sa.Boolean, nullable=False, default=False),
    sa.Column("urgent", sa.Boolean, nullable=False, default=False),
    sa.Column("label_count", sa.Integer, nullable=False, default=0),
    sa.Column("latest", Number, nullable=False, default=0),
    sa.Index(
        "waiting_reviews", "label", "expired", "audit", "skips", sa.desc("urgent"), "place", "number", "label_count"
    ),
    sa.Index("newest_reviews", sa.desc("latest"), "expired", "skips", sa.desc("urgent"), "place", "number"),
    sa.Index("owned_reviews", "lease_owner", "label"),
    sa.Index("leased_reviews", "lease_until"),
)
"""One row per image to review. `likely` are the likeliest classes as [class, probability], `views` the view, predicted
class and probability of each look; `place` orders the queue. `expired` images were removed before their review, or need
no label.

`label` is the label in force: a class, or an `Answer`, which is negative. It, `label_count` and `latest` (the number of
labels, and of the last event) follow from the active events. `double` images were drawn for two reviewers, `urgent`
ones wait for another reviewer after an escalation or different labels."""

events = sa.Table(
    "events",
    metadata,
    sa.Column("number", Number, primary_key=True),
    sa.Column("image", sa.ForeignKey("reviews.number"), nullable=False, index=True),
    sa.Column("at", sa.Double, nullable=False, index=True),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("session", sa.Text),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("label", sa.Integer),
    sa.Column("before", sa.Integer),
    sa.Column("comment", sa.Text),
    sa.Column("seconds", sa.Double),
    sa.Column("ended", sa.Text),
    sa.Index("events_of_reviewers", "by", "ended", "image"),
    sa.Index("events_of_sessions", "session", "ended", "number"),
)
"""Everything that reviewers did, never removed: who, from which session, and the action (`Action`) with its label.
`before` is the label that it replaced, `seconds` how long the image was on the screen. `ended` is the action that ended
it; null for active labels, escalations and decisions."""

images = sa.Table(
    "images",
    metadata,
    sa.Column("number", sa.ForeignKey("decisions.number"), primary_key=True),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("stored_at", sa.Double, nullable=False, index=True),
)
"""The image files to review, as received."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("csrf", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
)
"""Browser sessions: the sha256 of the cookie, and the CSRF token that forms and scripts must send."""


class StorageError(ServingError):
    """The database cannot be read or written, for example because the disk is full."""


class StorageUnavailableError(StorageError):
    """The database cannot be read or reached; a repeated transaction may succeed."""


class Database:
    """Transactions of one instance. Writes are serialized, also across instances.

    A transaction is on disk when `write` returns, so a crash loses nothing. Since writes are serialized, row numbers
    become visible in ascending order: a reader that continues after the last number misses none. Writes and urgent
    reads have reserved connections.
    """

    def __init__(self, url: sa.URL, *, create: bool = True) -> None:
        self.url = url
        self.is_shared = url.get_backend_name() == "postgresql"
        """Whether several instances can share it."""
        self.place = repr(url.render_as_string(hide_password=True) if self.is_shared else url.database)
        """Its location, without the password."""
        self._lock = Lock()
        self._reader, self._urgent_reader = _make_engine(url, "BEGIN"), _make_engine(url, "BEGIN")
        self._writer = _make_engine(url, "BEGIN IMMEDIATE")
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self, *, urgent: bool = False) -> Iterator[sa.Connection]:
        """Read in one transaction; urgent reads have their own connection pool."""
        engine = self._urgent_reader if urgent else self._reader
        with self._translate_errors(StorageUnavailableError), engine.connect() as connection:
            yield connection

    def fetch(self, query: sa.Select[Any]) -> Sequence[Any]:
        """Return all rows of a query."""
        with self.read() as connection:
            return connection.execute(query).all()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Write in one transaction, which is on disk afterwards; an exception rolls it back."""
        with self._translate_errors(StorageError), self._lock, self._writer.begin() as connection:
            if self.is_shared:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITE_LOCK)))
            yield connection

    @property
    def audit_seed(self) -> int:
        """Secret random seed of the audits, so that clients cannot choose ids that avoid an audit."""
        ((seed,),) = self.fetch(sa.select(settings.c.value).where(settings.c.name == "seed"))
        return int(seed)

    def close(self) -> None:
        """Close all connections."""
        for engine in (self._reader, self._urgent_reader, self._writer):
            engine.dispose()

    def _prepare(self, create: bool) -> None:
        """Check the schema version; create missing tables, which are an error without `create`."""
        with self.write() if create else self.read() as connection:
            if create:
                metadata.create_all(connection)
            elif not sa.inspect(connection).has_table(settings.name):
                raise ServingError(f"the database {self.place} does not belong to a service; check its address.")
            found = dict(tuple(row) for row in connection.execute(sa.select(settings.c.name, settings.c.value)))
            if create and not found:
                found = {"version": SCHEMA_VERSION, "seed": str(secrets.randbits(63))}
                rows = [{"name": name, "value": value} for name, value in found.items()]
                connection.execute(sa.insert(settings), rows)
        if found.get("version") != SCHEMA_VERSION:
            fault = f"the database {self.place} has schema version {found.get('version')}, expected {SCHEMA_VERSION}"
            raise ServingError(f"{fault}; use the secondlook version that created it, or another data folder.")

    @contextmanager
    def _translate_errors(self, kind: type[StorageError]) -> Iterator[None]:
        """Turn database errors, lost connections and timeouts into a `StorageError` of one sentence."""
        driver = self._writer.dialect.loaded_dbapi
        try:
            yield
        except (sa.exc.SQLAlchemyError, driver.Error, OSError) as error:  # while connecting, pg8000 raises the last two
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
            details = cause.args[0] if cause.args else cause
            fields = details if isinstance(details, dict) else {"M": str(details)}
            text, state = fields.get("M", str(details)), fields.get("C", "")
            is_lost = isinstance(cause, driver.InterfaceError | sa.exc.TimeoutError | OSError)
            if is_lost or state.startswith(BUSY_STATES):
                kind = StorageUnavailableError
            reason = " ".join(text.split())[:200].rstrip(".")
            raise kind(f"the database {self.place} failed: {reason}; free disk space, or check its address.") from error


def open_database(data_dir: Path, url: str | None = None, *, create: bool = True) -> Database:
    """Open the database at a URL, by default the SQLite file of a data folder; without `create`, it must exist."""
    if url is not None:
        return Database(parse_url(url), create=create)
    path = data_dir / DATABASE_FILE
    if not create and not path.is_file():  # opening would create it
        raise ServingError(f"there is no {DATABASE_FILE} in {str(data_dir)!r}; expected the data folder of a service.")
    with suppress(OSError):  # SQLite reports the reason
        path.touch(mode=0o600)  # SQLite gives its other files the same permissions
    return Database(sa.URL.create("sqlite", database=str(path)), create=create)


def parse_url(text: str) -> sa.URL:
    """Parse the URL of a PostgreSQL database."""
    expected = "expected postgresql://USER:PASSWORD@HOST/NAME."
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # not shown, as it may contain a password
        raise ServingError(f"cannot parse the database URL; {expected}") from None
    is_postgresql = url.drivername in ("postgresql", "postgres", "postgresql+pg8000")
    if not is_postgresql or not url.username or not url.database:
        raise ServingError(f"the database URL (driver {url.drivername!r}) is not a complete PostgreSQL URL; {expected}")
    return url.set(drivername="postgresql+pg8000")


def format_time(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _make_engine(url: sa.URL, begin: str) -> sa.Engine:
    """Return an engine; `begin` is the statement that starts a SQLite transaction."""
    is_sqlite = url.get_backend_name() == "sqlite"
    statements = SQLITE_SETTINGS if is_sqlite else [f"SET {key} = '{one}'" for key, one in POSTGRESQL_SETTINGS.items()]
    try:
        engine = sa.create_engine(
            url,
            connect_args={"timeout": BUSY_SECONDS if is_sqlite else SILENT_SECONDS},
            pool_pre_ping=not is_sqlite,
            pool_timeout=POOL_SECONDS,
            hide_parameters=True,
        )
    except ModuleNotFoundError:
        raise MissingExtraError("a PostgreSQL database", "pg8000", "serve") from None

    def configure(connection: Any, _: object) -> None:
        if is_sqlite:
            connection.isolation_level = None  # otherwise the driver decides when transactions begin
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        connection.commit()

    sa.event.listen(engine, "connect", configure)
    if is_sqlite:
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine
