"""A PostgreSQL server of the tests' own: Debian's programs, in a temporary folder, on a free port of this machine."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from stress.server_process import find_free_port
from tests.serving.running import wait_for

USER = "tester"
PASSWORD = "not-a-secret"
SETTINGS = ("fsync=off", "unix_socket_directories=", "listen_addresses=127.0.0.1", "log_min_messages=fatal")


@contextmanager
def run_postgres() -> Iterator[str]:
    """Start a server; yields the URL of its first database. The test is skipped where PostgreSQL is not installed."""
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    # PostgreSQL refuses to run as root.
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = None if os.geteuid() != 0 else "postgres" if "postgres" in names else "nobody"
    folder = Path(tempfile.mkdtemp(prefix="secondlook-postgres-"))
    (folder / "password").write_text(PASSWORD)
    if user is not None:
        for path in (folder, folder / "password"):
            shutil.chown(path, user)
    options = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
    cluster = folder / "cluster"
    login = ["--username", USER, "--auth=scram-sha-256", "--pwfile", str(folder / "password")]
    initialize = [programs / "initdb", "--pgdata", cluster, "--encoding=UTF8", "--no-sync", *login]
    subprocess.run(initialize, check=True, **options)  # type: ignore[call-overload]
    port = find_free_port()
    settings = [part for setting in SETTINGS for part in ("-c", setting)]
    command = [programs / "postgres", "-D", cluster, "-p", str(port), *settings]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    url = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"
    try:
        wait_for(lambda: answers(url))
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # ends all connections
        server.wait(timeout=120)
        shutil.rmtree(folder)


def find_programs() -> Path | None:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = shutil.which("initdb")
    if installed:
        return installed[-1].parent
    return Path(os.path.realpath(found)).parent if found else None


def execute(url: str, statement: str) -> None:
    """Execute a statement outside of a transaction."""
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+pg8000"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(sa.text(statement))
    finally:
        engine.dispose()


def answers(url: str) -> bool:
    try:
        execute(url, "SELECT 1")
    except sa.exc.DBAPIError:
        return False
    return True
