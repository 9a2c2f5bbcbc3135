"""`secondlook token`: tokens are made, listed and removed, and a service that others can reach needs one."""

from pathlib import Path
from typing import get_args

from secondlook.cli import serve
from secondlook.serving import ServiceOptions
from secondlook.serving.tokens import PERMISSIONS
from tests.cli.conftest import Here


def test_a_token_is_shown_once_and_works_until_it_is_removed(here: Here, tmp_path: Path) -> None:
    place = ("--data-dir", "service")
    done = here.ok("token", "add", "Anna", "--role", "reviewer", *place)
    (shown,) = [line for line in done.out.splitlines() if line.startswith("sl_")]
    made = here("token", "add", "robot", "--role", "client", *place, "--json").json
    token = made.pop("token")
    assert made == {"name": "robot", "role": "client"}
    for text, owner in ((shown, ("Anna", "reviewer")), (token, ("robot", "client"))):
        principal = ServiceOptions(tmp_path / "service").open_tokens().check(text)
        assert principal is not None
        assert (principal.name, principal.role) == owner
        assert text not in here("token", "list", *place).out
    rows = here("token", "list", *place, "--json").json
    assert [(row["name"], row["role"]) for row in rows] == [("Anna", "reviewer"), ("robot", "client")]
    assert all(row["created"].endswith("+00:00") for row in rows)
    here.ok("token", "remove", "robot", *place)
    assert ServiceOptions(tmp_path / "service").open_tokens().check(token) is None
    listed = here("token", "list", *place).out
    assert "Anna" in listed
    assert "robot" not in listed
    here.ok("token", "remove", "Anna", *place)
    assert "No tokens" in here("token", "list", *place).out


def test_mistakes_exit_with_2(here: Here, tmp_path: Path) -> None:
    for words in ("add Anna --role owner", "add local --role admin", "add Anna", "remove Anna"):
        here.fail("token", *words.split(), "--data-dir", "service")
        assert not (tmp_path / "service" / "tokens.json").exists()
    (role, _) = get_args(serve.RoleOption)
    assert set(get_args(role)) == set(PERMISSIONS)
    (tmp_path / "policy.json").write_text("{}")
    reason = "--host 0.0.0.0"
    repair = "'secondlook token add NAME --role admin --data-dir DIR'"
    line = "serve --policy policy.json --data-dir service --host 0.0.0.0"
    here.refuse(*line.split(), told=(reason, repair))
