"""Fixtures of the service: a policy with images, a running server, and databases."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from secondlook.serving.database import Database, open_database
from tests.serving.postgres import execute, run_postgres
from tests.serving.running import Digits, Server, make_digits, serve


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """A policy about digits, and files of digits that it was not calibrated on."""
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def server(digits: Digits, tmp_path: Path) -> Iterator[Server]:
    """A service with SQLite, served in this process on a free port: the URL and the service."""
    with serve(digits.policy, tmp_path / "service", audit=0.2) as running:
        yield running


@pytest.fixture(scope="module")
def running(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One service shared by the independent tests of a file."""
    with serve(digits.policy, tmp_path_factory.mktemp("running") / "service", audit=0.2) as one:
        yield one


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server for all tests of this process: the URL of a database to connect to first."""
    with run_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    name = f"test_{secrets.token_hex(8)}"
    execute(postgres_server, f"CREATE DATABASE {name}")
    yield postgres_server.removesuffix("/postgres") + f"/{name}"
    execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, sqlite: Database, tmp_path: Path) -> Iterator[Database]:
    """An empty database of either kind, for the tests of the store."""
    opened = sqlite if request.param == "sqlite" else open_database(tmp_path, request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()
