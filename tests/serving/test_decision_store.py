"""The store of decisions: one row per id, in the order of the stream, in SQLite and in PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import secondlook as sl
from secondlook.errors import ServingError
from secondlook.serving import database as database_module
from secondlook.serving import store as store_module
from secondlook.serving.database import (
    Database,
    DatabaseReadError,
    StorageError,
    decisions,
    images,
    open_database,
    parse_url,
    reviews,
)
from secondlook.serving.database import settings as settings_table
from secondlook.serving.store import DecisionStore, NewDecision, StoredImage
from tests.serving.postgres import execute
from tests.serving.running import Digits
from tests.serving.streams import make_decision

SHOWN = ("synchronous_commit", "lock_timeout", "idle_in_transaction_session_timeout")


def make_new(id_: str, *, digest: str = "d", **changes: Any) -> NewDecision:
    image = StoredImage("image/png", b"content of " + id_.encode())
    return NewDecision(make_decision(id=id_, **changes), digest, f"{id_}.png", image)


@pytest.fixture
def store(database: Database, digits: Digits) -> DecisionStore:
    store = DecisionStore(database)
    store.deploy(sl.load_policy(digits.policy), None)
    return store


def hold_connections(database: Database, held: ExitStack) -> None:
    """Begin to read again and again."""
    for _ in range(100):
        held.enter_context(database.read())


def count(database: Database, table: sa.Table) -> int:
    with database.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


class TestAdd:
    def test_a_decision_is_found_as_it_was_added(self, store: DecisionStore) -> None:
        (outcome,) = store.add([make_new("a")], 1)
        assert not outcome.replayed
        assert store.find(["a", "b"]) == {"a": outcome.decision}
        assert (outcome.decision.label, outcome.decision.low, outcome.decision.name) == (2, 0.4, "a.png")

    def test_top_k_classes_survive(self, store: DecisionStore) -> None:
        new = make_new("a")
        store.add([new._replace(decision=new.decision.model_copy(update={"labels": (2, 1)}))], 1)
        assert store.find(["a"])["a"].labels == [2, 1]

    def test_an_id_keeps_its_first_decision(self, store: DecisionStore, database: Database) -> None:
        (first,) = store.add([make_new("a", digest="one")], 1)
        again, other = store.add([make_new("a", digest="two"), make_new("b")], 1)
        assert again.replayed
        assert again.decision == first.decision
        assert not other.replayed
        assert count(database, decisions) == 2

    def test_only_images_that_people_review_are_stored(self, store: DecisionStore, database: Database) -> None:
        new = [make_new("no"), make_new("yes", accept=True), make_new("due", accept=True, audit=True)]
        store.add(new, 1)
        assert [count(database, table) for table in (decisions, reviews, images)] == [3, 2, 2]
        with database.read() as connection:
            query = sa.select(reviews.c.likely, reviews.c.views, images.c.content)
            row = connection.execute(query.where(images.c.number == reviews.c.number, reviews.c.number == 1)).one()
        assert row == ([[2, 0.5], [1, 0.3]], [["identity", 2, 0.5], ["hflip", 1, 0.4]], b"content of no")

    def test_a_failed_transaction_leaves_nothing(self, store: DecisionStore, database: Database) -> None:
        with pytest.raises(StorageError):
            store.add([make_new("a")], deployment=99)  # which does not exist
        assert [count(database, table) for table in (decisions, reviews, images)] == [0, 0, 0]

    def test_many_threads_give_every_id_one_row(self, store: DecisionStore, database: Database) -> None:
        batches = [[make_new(f"{(start + step) % 40}") for step in range(5)] for start in range(0, 120, 3)]
        with ThreadPoolExecutor(8) as pool:
            outcomes = [one for batch in pool.map(lambda batch: store.add(batch, 1), batches) for one in batch]
        assert sum(not outcome.replayed for outcome in outcomes) == 40
        assert count(database, decisions) == 40
        assert len({outcome.decision.number for outcome in outcomes}) == 40

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=5), max_size=8))
    def test_numbers_follow_each_other(self, store: DecisionStore, batches: list[list[str]]) -> None:
        for batch in batches:
            store.add([make_new(id_) for id_ in batch], 1)
        numbers = sorted(one.number for one in store.find([*"abcdefgh"]).values())
        assert numbers == list(range(1, len(numbers) + 1))


class TestDeployments:
    def test_the_same_policy_is_deployed_once(self, store: DecisionStore, digits: Digits) -> None:
        policy = sl.load_policy(digits.policy)
        assert store.deploy(policy, None).number == 1
        assert store.deploy(policy, 0.1).number == 2
        other = sl.load_policy(digits.adaptive_policy)
        assert not store.find_audits(other)
        assert store.deploy(other, 0.1).number == 3
        assert store.find_audits(other)
        latest = store.latest_deployment()
        assert latest is not None
        assert (latest.number, latest.policy, latest.audit) == (3, other, 0.1)
        assert [one.policy for one in store.list_deployments()] == [policy, policy, other]

    def test_decisions_are_listed_by_deployment(
        self, store: DecisionStore, digits: Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_module, "BLOCK_ROWS", 2)
        store.add([make_new("a")], 1)
        policy = sl.load_policy(digits.policy)
        number = store.deploy(sl.load_policy(digits.adaptive_policy), None).number
        store.add([make_new("b")], number)
        store.add([make_new("c")], 1)

        def list_ids(numbers: list[int], after: int = 0) -> list[str]:
            tables = store.iter_score_tables(policy, dict.fromkeys(numbers), after=after)
            return [id_ for _, table in tables for id_ in table["id"].to_pylist()]

        assert (list_ids([1]), list_ids([number]), list_ids([1, number], after=1)) == (["a", "c"], ["b"], ["b", "c"])


class TestDatabase:
    def test_the_seed_of_audits_stays(self, database: Database) -> None:
        again = Database(database.url)
        assert database.audit_seed == again.audit_seed
        again.close()

    def test_another_version_of_the_tables_is_an_error(self, database: Database) -> None:
        with database.write() as connection:
            connection.execute(sa.text("UPDATE settings SET value = '99' WHERE name = 'version'"))
        with pytest.raises(ServingError, match="99"):
            Database(database.url)

    def test_a_reader_sees_no_open_transaction(self, store: DecisionStore, database: Database) -> None:
        with database.write() as connection:
            connection.execute(sa.delete(settings_table))
            seed = database.audit_seed
            connection.rollback()
        assert seed == database.audit_seed

    def test_readers_cannot_take_the_connections_that_decisions_need(
        self, store: DecisionStore, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database_module, "POOL_SECONDS", 0.1)
        crowded = Database(database.url)
        decisions_in_work = DecisionStore(crowded)
        with ExitStack() as held:
            with pytest.raises(DatabaseReadError):
                hold_connections(crowded, held)
            assert decisions_in_work.find(["a"], urgent=True) == {}
            assert not decisions_in_work.add([make_new("a")], 1)[0].replayed
        crowded.close()

    def test_settings_of_a_postgresql_server_do_not_lose_decisions(self, tmp_path: Path, postgres_url: str) -> None:
        execute(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET synchronous_commit = off")
        opened = open_database(tmp_path, postgres_url)
        for context in (opened.read(), opened.read(urgent=True), opened.write()):
            with context as connection:
                shown = {name: connection.execute(sa.text(f"SHOW {name}")).scalar() for name in SHOWN}
            assert shown["synchronous_commit"] == "on"
            assert "0" not in shown.values(), "there is a limit on each"
        opened.close()

    def test_an_instance_that_holds_the_lock_is_not_waited_for_without_end(
        self, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frozen = open_database(tmp_path, postgres_url)
        monkeypatch.setitem(database_module.POSTGRESQL_SETTINGS, "lock_timeout", "100ms")
        other = open_database(tmp_path, postgres_url)
        with frozen.write(), pytest.raises(StorageError), other.write():
            pass
        with other.write():
            pass
        frozen.close()
        other.close()

    @pytest.mark.parametrize(
        "url", ["nonsense", "mysql://user:secret@host/name", "postgresql://user:secret@host:port/name"]
    )
    def test_urls_of_other_databases_are_refused_without_repeating_passwords(self, url: str) -> None:
        with pytest.raises(ServingError) as error:
            parse_url(url)
        assert "secret" not in str(error.value)

    def test_a_server_that_is_away_is_an_error_without_its_password(self, tmp_path: object) -> None:
        with pytest.raises(StorageError, match=r"postgresql\+pg8000://user:\*\*\*@127.0.0.1:1/name") as error:
            open_database(tmp_path, "postgresql://user:secret@127.0.0.1:1/name")  # type: ignore[arg-type]
        assert "secret" not in str(error.value)
