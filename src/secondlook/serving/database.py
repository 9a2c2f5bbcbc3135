"""The database of the service: SQLite in the data folder, or PostgreSQL for several instances."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa

from secondlook.errors import MissingExtraError, ServingError
from secondlook.serving.schema import metadata, settings

DATABASE_FILE = "service.db"
SCHEMA_VERSION = "1"
BUSY_SECONDS = 30
"""How long a transaction waits for that of another process."""
WRITE_LOCK = 7_305_461_903
"""Key of the PostgreSQL lock that orders the transactions of all instances."""


class StorageError(ServingError):
    """The database cannot be read or written: the disk is full, or the server does not respond."""


class Database:
    """Transactions of one instance. Those that write follow one after another, also across instances.

    A transaction is on disk when `write` returns, so that a killed process or machine loses nothing. Since writers are
    ordered, the numbers of rows become visible in ascending order, and a reader who remembers the last one misses none.
    """

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self._lock = Lock()
        self._reader, self._writer = _make_engines(url)
        try:
            self._create_tables()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Read in one transaction: a consistent state."""
        with translate_database_errors(self.url), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Write in one transaction, which is on disk afterwards; an exception undoes all of it."""
        with translate_database_errors(self.url), self._lock, self._writer.begin() as connection:
            if self.is_shared:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITE_LOCK)))
            yield connection

    @property
    def is_shared(self) -> bool:
        """Whether several instances may use it."""
        return self.url.get_backend_name() == "postgresql"

    @property
    def audit_seed(self) -> int:
        """Random seed of the audits: nobody who chooses ids can know which of them will be audited."""
        with self.read() as connection:
            return int(connection.execute(sa.select(settings.c.value).where(settings.c.name == "seed")).scalar_one())

    def close(self) -> None:
        """Close all connections."""
        for engine in {self._reader, self._writer}:
            engine.dispose()

    def _create_tables(self) -> None:
        with self.write() as connection:
            metadata.create_all(connection)
            found = dict(tuple(row) for row in connection.execute(sa.select(settings.c.name, settings.c.value)))
            if not found:
                values = {"version": SCHEMA_VERSION, "seed": str(secrets.randbits(63)), "created": str(time.time())}
                rows = [{"name": name, "value": value} for name, value in values.items()]
                connection.execute(sa.insert(settings), rows)
            elif found.get("version") != SCHEMA_VERSION:
                raise ServingError(
                    f"the database {describe_url(self.url)} has tables of version {found.get('version')}, expected "
                    f"{SCHEMA_VERSION}; use the version of secondlook that made it, or another data folder."
                )


def open_database(data_dir: Path, url: str | None = None) -> Database:
    """Open the database at a URL, or else the SQLite file of a data folder, and create its tables if there are none."""
    if url is None:
        return Database(sa.URL.create("sqlite", database=str(data_dir / DATABASE_FILE)))
    return Database(parse_url(url))


def parse_url(text: str) -> sa.URL:
    """Parse the URL of a PostgreSQL database."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise ServingError(
            "the database URL cannot be read; expected postgresql://USER:PASSWORD@HOST/NAME."
        ) from None  # it may contain a password, so it is not repeated
    if url.drivername not in ("postgresql", "postgres", "postgresql+pg8000"):
        raise ServingError(
            f"the database URL starts with {url.drivername!r}; expected postgresql://USER:PASSWORD@HOST/NAME. "
            "Without a URL, SQLite is used."
        )
    if not url.username or not url.database:
        raise ServingError("the database URL has no user or no name; expected postgresql://USER:PASSWORD@HOST/NAME.")
    return url.set(drivername="postgresql+pg8000")


def describe_url(url: sa.URL) -> str:
    """Return where a database is, without the password."""
    return repr(url.database if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True))


def _make_engines(url: sa.URL) -> tuple[sa.Engine, sa.Engine]:
    """Return the engines of transactions that read, and of those that write."""
    if url.get_backend_name() == "sqlite":
        return _make_sqlite_engine(url, "BEGIN"), _make_sqlite_engine(url, "BEGIN IMMEDIATE")
    try:
        engine = sa.create_engine(url, pool_pre_ping=True, hide_parameters=True)
    except ModuleNotFoundError:
        raise MissingExtraError("a PostgreSQL database", "pg8000", "serve") from None
    return engine, engine


def _make_sqlite_engine(url: sa.URL, begin: str) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True)

    def configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions at moments of its own
        connection.execute("PRAGMA journal_mode(WAL)")
        connection.execute("PRAGMA synchronous(FULL)")
        connection.execute("PRAGMA foreign_keys(ON)")

    sa.event.listen(engine, "connect", configure)
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


@contextmanager
def translate_database_errors(url: sa.URL) -> Iterator[None]:
    """Turn failures of the database into one sentence."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise StorageError(
            f"the database {describe_url(url)} failed: {shorten_cause(error)}; free disk space, or check that it "
            "can be reached and written."
        ) from error


def shorten_cause(error: sa.exc.DBAPIError) -> str:
    """Return what the database said, in one line."""
    cause = error.orig
    details = cause.args[0] if cause is not None and cause.args else cause
    text = details.get("M", str(details)) if isinstance(details, dict) else str(details)
    return " ".join(text.split())[:200].rstrip(".")
