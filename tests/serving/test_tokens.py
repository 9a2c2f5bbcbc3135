"""Tests of access tokens: what the file holds, and who is let in."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from argon2 import PasswordHasher
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import ServingError
from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import MAX_CHECKS, Principal, TokenFile


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "service" / "tokens.json")


def test_a_token_identifies_its_owner_and_no_other_text_does(tokens: TokenFile) -> None:
    anna, ben = tokens.add("Anna", "reviewer"), tokens.add("Ben", "client")
    assert tokens.check(anna) == Principal("Anna", "reviewer", f"token:{anna.split('_')[1]}")
    assert tokens.check(ben).role == "client"  # type: ignore[union-attr]
    _, id_, secret = anna.split("_", 2)
    other = ben.split("_", 2)
    wrong = ["", "sl", "sl__", anna[:-1], anna + "x", anna.upper(), f"sl_{id_}_{other[2]}", f"sl_{other[1]}_{secret}"]
    assert [tokens.check(text) for text in wrong] == [None] * len(wrong)


EMPTY = TokenFile(Path("/nowhere/tokens.json"))


@given(text=st.text(max_size=300) | st.from_regex(r"sl_[0-9a-f]*_\w*"))
@settings(max_examples=50)
def test_any_text_is_a_wrong_token(text: str) -> None:
    assert EMPTY.check(text) is None
    assert EMPTY.recall(text) is None


@pytest.mark.posix
def test_the_file_is_private_and_has_only_hashes(tokens: TokenFile) -> None:
    token = tokens.add("Anna", "admin")
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    text = tokens.path.read_text()
    assert token.split("_", 2)[2] not in text
    (record,) = json.loads(text)["tokens"]
    assert record["hash"].startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert PasswordHasher().verify(record["hash"], token)


def test_tokens_of_another_process_work_at_once_and_removed_ones_do_not(tokens: TokenFile) -> None:
    elsewhere = TokenFile(tokens.path)
    token = elsewhere.add("Anna", "reviewer")
    assert tokens.check(token) is not None
    assert tokens.recall(token) is not None
    elsewhere.remove("Anna")
    assert tokens.check(token) is None
    assert tokens.recall(token) is None
    again = elsewhere.add("Anna", "reviewer")
    assert tokens.check(token) is None  # the name returned, the token did not
    assert tokens.check(again) is not None
    tokens.path.unlink()
    assert tokens.recall(again) is None


def test_a_token_is_hashed_once_and_a_wrong_one_every_time(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tokens.add("Anna", "reviewer")
    hasher = Mock(wraps=tokens._hasher)
    monkeypatch.setattr(tokens, "_hasher", hasher)
    assert tokens.recall(token) is None
    assert all(tokens.check(token) is not None for _ in range(3))
    assert tokens.recall(token) is not None
    assert hasher.verify.call_count == 1
    assert all(tokens.check(token + "x") is None for _ in range(3))
    assert hasher.verify.call_count == 4


def test_an_unknown_id_is_hashed_like_a_known_one(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tokens.add("Anna", "reviewer")
    (known,) = (one.hash for one in tokens.read().values())
    hasher = Mock(wraps=tokens._hasher)
    monkeypatch.setattr(tokens, "_hasher", hasher)
    assert tokens.check(f"sl_{'0' * 12}_{token.split('_', 2)[2]}") is None
    (used, _), _ = hasher.verify.call_args
    assert used != known
    assert used.split("$")[:4] == known.split("$")[:4]  # the same algorithm and costs


def test_checks_at_once_are_bounded(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_two_processes_add_tokens_at_once(tokens: TokenFile) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: TokenFile(tokens.path).add(f"n{number}", "client"), range(8)))
    assert sorted(one.name for one in tokens.read().values()) == sorted(f"n{number}" for number in range(8))
    assert all(tokens.check(token) is not None for token in made)


@pytest.mark.parametrize("name", ["", " Anna", "Anna\n", "a\x1b[31m", "local", "x" * 101])
def test_names_that_cannot_stand_on_a_label_are_errors(tokens: TokenFile, name: str) -> None:
    with pytest.raises(ServingError):
        tokens.add(name, "reviewer")
    assert tokens.read() == {}


def test_a_name_twice_and_an_unknown_name_are_errors(tokens: TokenFile) -> None:
    tokens.add("Anna", "reviewer")
    with pytest.raises(ServingError, match="Anna"):
        tokens.add("Anna", "admin")
    with pytest.raises(ServingError, match="Ben"):
        tokens.remove("Ben")
    assert [(one.name, one.role) for one in tokens.read().values()] == [("Anna", "reviewer")]


@pytest.mark.parametrize("content", ["", "{", '{"tokens": 1}', '{"tokens": [{"id": "a"}]}', '{"other": []}'])
def test_a_damaged_file_lets_nobody_in(tokens: TokenFile, content: str) -> None:
    token = tokens.add("Anna", "admin")
    time.sleep(0.01)
    tokens.path.write_text(content)
    for use in (lambda: tokens.check(token), tokens.read, lambda: tokens.add("Ben", "admin")):
        with pytest.raises(ServingError, match=r"tokens\.json"):
            use()
