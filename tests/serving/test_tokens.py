"""Tests of access tokens: the token file, and checks of tokens."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from argon2 import PasswordHasher
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import ServingError
from secondlook.serving import ServiceOptions
from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import MAX_CHECKS


@pytest.fixture
def tokens(tmp_path: Path) -> Any:
    return ServiceOptions(tmp_path / "service").open_tokens()


def test_a_token_identifies_its_owner_until_it_is_removed(tokens: Any) -> None:
    anna, ben = tokens.add("Anna", "reviewer"), tokens.add("Ben", "client")
    owner = tokens.check(anna)
    assert (owner.name, owner.role, owner.session) == ("Anna", "reviewer", f"token:{anna.split('_')[1]}")
    assert tokens.check(ben).role == "client"
    _, id_, secret = anna.split("_", 2)
    other = ben.split("_", 2)
    wrong = ["", "sl", "sl__", anna[:-1], anna + "x", anna.upper(), f"sl_{id_}_{other[2]}", f"sl_{other[1]}_{secret}"]
    assert [tokens.check(text) for text in wrong] == [None] * len(wrong)
    names = [f"n{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:  # as processes that add tokens at once
        added = pool.map(lambda name: ServiceOptions(tokens.path.parent).open_tokens().add(name, "client"), names)
        assert [tokens.check(token).name for token in added] == names
    elsewhere = ServiceOptions(tokens.path.parent).open_tokens()
    token = elsewhere.add("Cleo", "reviewer")
    assert tokens.check(token) == tokens.recall(token) is not None
    elsewhere.remove("Cleo")
    assert tokens.check(token) is tokens.recall(token) is None
    again = elsewhere.add("Cleo", "reviewer")
    assert tokens.check(token) is None  # the name returned, the token did not
    assert tokens.check(again) is not None
    tokens.path.unlink()
    assert tokens.recall(again) is None


@given(text=st.text(max_size=300) | st.from_regex(r"sl_[0-9a-f]*_\w*"))
@settings(max_examples=50)
def test_any_other_text_is_a_wrong_token(text: str) -> None:
    empty = ServiceOptions(Path("/nowhere")).open_tokens()
    assert empty.check(text) is empty.recall(text) is None


def test_token_is_hashed_once_and_wrong_tokens_every_time(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tokens.add("Anna", "reviewer")
    (known,) = (one.hash for one in tokens.read().values())
    hasher = Mock(wraps=tokens._hasher)
    monkeypatch.setattr(tokens, "_hasher", hasher)
    assert tokens.recall(token) is None
    assert all(tokens.check(token) is not None for _ in range(3))
    assert tokens.recall(token) is not None
    assert hasher.verify.call_count == 1
    assert all(tokens.check(token + "x") is None for _ in range(3))
    assert hasher.verify.call_count == 4
    assert tokens.check(f"sl_{'0' * 12}_{token.split('_', 2)[2]}") is None
    (used, _), _ = hasher.verify.call_args
    assert used != known
    assert used.split("$")[:4] == known.split("$")[:4], "an unknown id takes the same algorithm and costs"


def test_number_of_concurrent_checks_is_limited(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    token, started, release = tokens.add("Anna", "reviewer"), threading.Semaphore(0), threading.Event()

    def verify(_hash: str, _token: str) -> bool:
        started.release()
        return release.wait(120)

    monkeypatch.setattr(tokens, "_hasher", Mock(verify=verify))
    with ThreadPoolExecutor(MAX_CHECKS) as pool:
        running = [pool.submit(tokens.check, token) for _ in range(MAX_CHECKS)]
        for _ in running:
            assert started.acquire(timeout=120)
        with pytest.raises(RequestError) as refused:
            tokens.check(token)
        release.set()
        assert all(one.result() is not None for one in running)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    assert tokens.check(token) is not None  # the places are free again


def test_token_file_is_private_and_has_only_hashes_and_valid_names(tokens: Any) -> None:
    token = tokens.add("Anna", "reviewer")
    for name in ("", " Anna", "Anna\n", "a\x1b[31m", "local", "x" * 101, "Anna"):
        with pytest.raises(ServingError):
            tokens.add(name, "admin")
    with pytest.raises(ServingError, match="Ben"):
        tokens.remove("Ben")
    assert [(one.name, one.role) for one in tokens.read().values()] == [("Anna", "reviewer")]
    if os.name != "nt":
        assert tokens.path.stat().st_mode & 0o777 == 0o600
    text = tokens.path.read_text()
    assert token.split("_", 2)[2] not in text
    (record,) = json.loads(text)["tokens"]
    assert record["hash"].startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert PasswordHasher().verify(record["hash"], token)


@pytest.mark.parametrize("content", ["", "{", '{"tokens": 1}', '{"tokens": [{"id": "a"}]}', '{"other": []}'])
def test_damaged_file_accepts_no_token(tokens: Any, content: str) -> None:
    token = tokens.add("Anna", "admin")
    tokens.path.write_text(content)
    for use in (lambda: tokens.check(token), tokens.read, lambda: tokens.add("Ben", "admin")):
        with pytest.raises(ServingError, match=r"tokens\.json"):
            use()
