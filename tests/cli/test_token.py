"""`secondlook token`: tokens are made, listed and removed, and a service that others can reach needs one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from secondlook.cli import app, serve
from secondlook.serving import ServiceOptions
from secondlook.serving.tokens import PERMISSIONS

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, in an empty folder; returns the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> "tuple[int, str, str]":
        monkeypatch.setattr("sys.argv", ["secondlook", *arguments])
        with pytest.raises(SystemExit) as stop:
            app.main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return run_command


def test_a_token_is_shown_once_and_works(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("token", "add", "Anna", "--role", "reviewer", "--data-dir", "service")
    assert code == 0
    (made,) = [line for line in out.splitlines() if line.startswith("sl_")]
    principal = ServiceOptions(tmp_path / "service").open_tokens().check(made)
    assert principal is not None
    assert (principal.name, principal.role) == ("Anna", "reviewer")
    _, listed, _ = run("token", "list", "--data-dir", "service")
    assert "Anna" in listed
    assert made not in listed


def test_json(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("token", "add", "robot", "--role", "client", "--data-dir", "service", "--json")
    made: dict[str, Any] = json.loads(out)
    assert ServiceOptions(tmp_path / "service").open_tokens().check(made.pop("token")) is not None
    assert made == {"name": "robot", "role": "client"}
    _, out, _ = run("token", "list", "--data-dir", "service", "--json")
    (row,) = json.loads(out)
    assert (row["name"], row["role"]) == ("robot", "client")
    assert row["created"].endswith("+00:00")


def test_a_removed_token_is_gone(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("token", "add", "Anna", "--role", "admin", "--data-dir", "service", "--json")
    assert run("token", "remove", "Anna", "--data-dir", "service")[0] == 0
    assert ServiceOptions(tmp_path / "service").open_tokens().check(json.loads(out)["token"]) is None
    _, out, _ = run("token", "list", "--data-dir", "service")
    assert "No tokens" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "Anna", "--role", "owner", "--data-dir", "service"),
        ("add", "local", "--role", "admin", "--data-dir", "service"),
        ("add", "Anna", "--data-dir", "service"),
        ("remove", "Anna", "--data-dir", "service"),
    ],
)
def test_mistakes_exit_with_2(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, _, err = run("token", *arguments)
    assert code == 2
    assert err
    assert not (tmp_path / "service" / "tokens.json").exists()


def test_a_service_for_others_without_a_token_says_how_to_make_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("{}")
    code, _, err = run("serve", "--policy", "policy.json", "--data-dir", "service", "--host", "0.0.0.0")
    assert code == 2
    assert "--host 0.0.0.0 can be reached by other machines" in err
    assert "make one first with 'secondlook token add NAME --role admin --data-dir DIR'" in err


def test_the_roles_are_those_of_the_service() -> None:
    (role, _) = get_args(serve.RoleOption)
    assert set(get_args(role)) == set(PERMISSIONS)
