"""`secondlook token`: tokens are made, listed and removed, and a service that others can reach needs one."""

from pathlib import Path
from typing import get_args

import pytest

from secondlook.cli import serve
from secondlook.serving import ServiceOptions
from secondlook.serving.tokens import PERMISSIONS
from tests.cli.conftest import Here


def test_a_token_is_shown_once_and_works(here: Here, tmp_path: Path) -> None:
    done = here.ok("token", "add", "Anna", "--role", "reviewer", "--data-dir", "service")
    (made,) = [line for line in done.out.splitlines() if line.startswith("sl_")]
    principal = ServiceOptions(tmp_path / "service").open_tokens().check(made)
    assert principal is not None
    assert (principal.name, principal.role) == ("Anna", "reviewer")
    listed = here("token", "list", "--data-dir", "service").out
    assert "Anna" in listed
    assert made not in listed


def test_a_removed_token_is_gone(here: Here, tmp_path: Path) -> None:
    made = here("token", "add", "robot", "--role", "client", "--data-dir", "service", "--json").json
    token = made.pop("token")
    assert ServiceOptions(tmp_path / "service").open_tokens().check(token) is not None
    assert made == {"name": "robot", "role": "client"}
    (row,) = here("token", "list", "--data-dir", "service", "--json").json
    assert (row["name"], row["role"]) == ("robot", "client")
    assert row["created"].endswith("+00:00")
    here.ok("token", "remove", "robot", "--data-dir", "service")
    assert ServiceOptions(tmp_path / "service").open_tokens().check(token) is None
    assert "No tokens" in here("token", "list", "--data-dir", "service").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "Anna", "--role", "owner", "--data-dir", "service"),
        ("add", "local", "--role", "admin", "--data-dir", "service"),
        ("add", "Anna", "--data-dir", "service"),
        ("remove", "Anna", "--data-dir", "service"),
    ],
)
def test_mistakes_exit_with_2(here: Here, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = here.fail("token", *arguments)
    assert done.err
    assert not (tmp_path / "service" / "tokens.json").exists()


def test_a_service_for_others_without_a_token_says_how_to_make_one(here: Here, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("{}")
    here.refuse(
        "serve",
        "--policy",
        "policy.json",
        "--data-dir",
        "service",
        "--host",
        "0.0.0.0",
        told=(
            "--host 0.0.0.0 can be reached by other machines",
            "make one first with 'secondlook token add NAME --role admin --data-dir DIR'",
        ),
    )


def test_the_roles_are_those_of_the_service() -> None:
    (role, _) = get_args(serve.RoleOption)
    assert set(get_args(role)) == set(PERMISSIONS)
