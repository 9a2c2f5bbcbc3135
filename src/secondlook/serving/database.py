"""The database of the service: SQLite in the data folder, or PostgreSQL for several instances."""

import secrets
import time
from collections.abc import Iterator, Mapping
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
POOL_SECONDS = 10
"""How long a transaction waits for a free connection of this process."""
SILENT_SECONDS = 60
"""A PostgreSQL server that sends nothing for so long is taken for lost; one that hears nothing from an instance within
a transaction ends it, so that a frozen instance does not hold the lock of all others."""
POSTGRESQL_SETTINGS = {
    "lock_timeout": f"{BUSY_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{SILENT_SECONDS}s",
    "synchronous_commit": "on",  # servers may have it off, and would lose what was acknowledged
}
WRITE_LOCK = 7_305_461_903
"""Key of the PostgreSQL lock that orders the transactions of all instances."""


class StorageError(ServingError):
    """The database cannot be read or written: the disk is full, or the server does not respond."""


class DatabaseReadError(StorageError):
    """The database cannot be read."""


class Database:
    """Transactions of one instance. Those that write follow one after another, also across instances.

    A transaction is on disk when `write` returns, so that a killed process or machine loses nothing. Since writers are
    ordered, the numbers of rows become visible in ascending order, and a reader who remembers the last one misses none.
    Writers, and readers that the decisions in work wait for, have connections that no other reader can take.
    """

    def __init__(self, url: sa.URL, *, create: bool = True) -> None:
        self.url = url
        self._lock = Lock()
        self._reader, self._urgent_reader, self._writer = _make_engines(url)
        try:
            if create:
                self._create_tables()
            else:
                self._check_tables()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self, *, urgent: bool = False) -> Iterator[sa.Connection]:
        """Read in one transaction; one that is urgent does not wait for others that read."""
        engine = self._urgent_reader if urgent else self._reader
        with translate_database_errors(self.url, DatabaseReadError), engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Write in one transaction, which is on disk afterwards; an exception undoes all of it."""
        with translate_database_errors(self.url, StorageError), self._lock, self._writer.begin() as connection:
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
        for engine in (self._reader, self._urgent_reader, self._writer):
            engine.dispose()

    def _create_tables(self) -> None:
        with self.write() as connection:
            metadata.create_all(connection)
            found = _read_settings(connection)
            if not found:
                values = {"version": SCHEMA_VERSION, "seed": str(secrets.randbits(63)), "created": str(time.time())}
                rows = [{"name": name, "value": value} for name, value in values.items()]
                connection.execute(sa.insert(settings), rows)
            else:
                self._check_version(found)

    def _check_tables(self) -> None:
        """Check that the database is that of a service, without changing it."""
        with self.read() as connection:
            if not sa.inspect(connection).has_table(settings.name):
                raise ServingError(
                    f"the database {describe_url(self.url)} is not that of a service; check its address."
                )
            self._check_version(_read_settings(connection))

    def _check_version(self, found: Mapping[str, str]) -> None:
        if found.get("version") != SCHEMA_VERSION:
            raise ServingError(
                f"the database {describe_url(self.url)} has tables of version {found.get('version')}, expected "
                f"{SCHEMA_VERSION}; use the version of secondlook that made it, or another data folder."
            )


def open_database(data_dir: Path, url: str | None = None, *, create: bool = True) -> Database:
    """Open the database at a URL, or else the SQLite file of a data folder.

    If it has no tables, they are created; without `create`, that is an error.
    """
    if url is None:
        return Database(sa.URL.create("sqlite", database=str(data_dir / DATABASE_FILE)), create=create)
    return Database(parse_url(url), create=create)


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


def _read_settings(connection: sa.Connection) -> dict[str, str]:
    return dict(tuple(row) for row in connection.execute(sa.select(settings.c.name, settings.c.value)))


def _make_engines(url: sa.URL) -> tuple[sa.Engine, sa.Engine, sa.Engine]:
    """Return the engines of transactions that read, of urgent ones that read, and of those that write."""
    if url.get_backend_name() == "sqlite":
        return (
            _make_sqlite_engine(url, "BEGIN"),
            _make_sqlite_engine(url, "BEGIN"),
            _make_sqlite_engine(url, "BEGIN IMMEDIATE"),
        )
    try:
        return _make_postgresql_engine(url), _make_postgresql_engine(url), _make_postgresql_engine(url)
    except ModuleNotFoundError:
        raise MissingExtraError("a PostgreSQL database", "pg8000", "serve") from None


def _make_postgresql_engine(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url,
        connect_args={"timeout": SILENT_SECONDS},
        pool_pre_ping=True,
        pool_timeout=POOL_SECONDS,
        hide_parameters=True,
    )

    def configure(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for name, value in POSTGRESQL_SETTINGS.items():
            cursor.execute(f"SET {name} = '{value}'")
        connection.commit()

    sa.event.listen(engine, "connect", configure)
    return engine


def _make_sqlite_engine(url: sa.URL, begin: str) -> sa.Engine:
    connect_args = {"timeout": BUSY_SECONDS}
    engine = sa.create_engine(url, connect_args=connect_args, pool_timeout=POOL_SECONDS, hide_parameters=True)

    def configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions at moments of its own
        connection.execute("PRAGMA journal_mode(WAL)")
        connection.execute("PRAGMA synchronous(FULL)")
        connection.execute("PRAGMA foreign_keys(ON)")
        connection.execute("PRAGMA secure_delete(ON)")  # what is removed is not left in the file

    sa.event.listen(engine, "connect", configure)
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


@contextmanager
def translate_database_errors(url: sa.URL, kind: type[StorageError]) -> Iterator[None]:
    """Turn failures of the database, and of waiting for a connection, into one sentence."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        raise kind(
            f"the database {describe_url(url)} failed: {shorten_cause(error)}; free disk space, or check that it "
            "can be reached and written."
        ) from error


def shorten_cause(error: sa.exc.SQLAlchemyError) -> str:
    """Return what the database said, in one line."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    details = cause.args[0] if cause.args else cause
    text = details.get("M", str(details)) if isinstance(details, dict) else str(details)
    return " ".join(text.split())[:200].rstrip(".")
