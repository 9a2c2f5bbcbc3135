"""Synthetic streams in the database of a service, and services without a classifier to watch them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import sqlalchemy as sa

from secondlook.decisions import Decision
from secondlook.policies import Policy
from secondlook.serving import ServiceOptions
from secondlook.serving.access import Access
from secondlook.serving.database import Database, decisions
from secondlook.serving.label_files import NewLabel
from secondlook.serving.service_metrics import ServiceMetrics
from secondlook.serving.store import DecisionStore, Deployment, NewDecision, ReviewStore
from secondlook.serving.tokens import Principal
from secondlook.serving.watcher import Watcher
from tests.monitoring.streams import Row, make_rows


def make_reviewer(name: str) -> Principal:
    return Principal(name, "reviewer", f"browser:{name}")


REVIEWER = make_reviewer("Ada")


def make_stream(n_images: int, **options: Any) -> list[Row]:
    """Return rows of images that could all be read: a service stores no others."""
    return [row for row in make_rows(n_images, **options) if row["reason"] is None]


def make_decision(**changes: Any) -> Decision:
    """Return a decision that rejects an image of class 2 after two looks, or with some changes."""
    values: dict[str, Any] = {
        "id": "a", "label": 2, "labels": None, "class_name": "two", "confidence": 0.5, "interval": (0.4, 0.6),
        "accept": False, "looks": 2, "first_look": 0.5, "disagreement": 0.1, "audit": False, "audit_probability": None,
        "likely": ((2, 0.5), (1, 0.3)),
        "views": (("identity", 2, 0.5), ("hflip", 1, 0.4)),
    }  # fmt: skip
    return Decision(**values | changes)


def decide_row(row: Row) -> Decision:
    shared = {name: value for name, value in row.items() if name in Decision.model_fields}
    return make_decision(**shared | {"interval": (row["confidence"] - 0.1, row["confidence"])})


def add_rows(database: Database, rows: Sequence[Row], deployment: Deployment, at: float | None = None) -> None:
    """Store rows as decisions of a deployment, now or at a time."""
    new = [NewDecision(decide_row(row), row["id"], None, None) for row in rows]
    added = DecisionStore(database).add(new, deployment.number)
    if at is not None:
        numbers = [one.decision.number for one in added]
        with database.write() as connection:
            connection.execute(decisions.update().where(decisions.c.number.in_(numbers)).values(decided_at=at))


def list_audits(database: Database, deployments: Sequence[int]) -> list[tuple[int, int]]:
    """Return the number and the predicted class of all audited images of some deployments."""
    audited = decisions.c.audit & decisions.c.deployment.in_(deployments)
    query = sa.select(decisions.c.number, decisions.c.label).where(audited).order_by(decisions.c.number)
    return [(number, label) for number, label in database.fetch(query)]


def review_all(service: Any, error_rate: float, *, seed: int = 0, wrong: Sequence[str] = ()) -> None:
    """Review all waiting images; predictions are wrong at random with `error_rate`, and for the ids in `wrong`."""
    rng = np.random.default_rng(seed)
    labels = []
    for item in itertools.chain.from_iterable(service.reviews.iter_items(["waiting"])):
        is_wrong = rng.random() < error_rate or item.id in wrong
        labels.append(NewLabel("row", item.id, (item.label + int(is_wrong)) % 4))
    service.reviews.add_labels(labels, REVIEWER.name)


class FakeService(SimpleNamespace):
    """What a watcher needs of a service, without a classifier."""

    def __init__(self, database: Database, folder: Path, policy: Policy, **options: Any) -> None:
        store = DecisionStore(database)
        audit = options.get("audit")
        super().__init__(
            options=ServiceOptions(folder, **options),
            database=database,
            decisions=store,
            reviews=ReviewStore(database, 300.0),
            metrics=ServiceMetrics(),
            worker=SimpleNamespace(waiting=0, is_alive=True),
            live=SimpleNamespace(deployment=store.deploy(policy, audit)),
            labeling=None,
        )
        self.tokens = self.options.open_tokens()
        self.access = Access(self.options, self.tokens, database)
        self.watcher = Watcher(self)  # type: ignore[arg-type]

    def refresh(self) -> None:
        self.live = SimpleNamespace(deployment=self.decisions.latest_deployment())

    def add(self, rows: Sequence[Row], at: float | None = None) -> None:
        """Store rows as decisions of the policy in force."""
        add_rows(self.database, rows, self.live.deployment, at)

    def look(self) -> dict[str, Any]:
        """Let the watcher look, and return its status."""
        self.watcher.look()
        return dict(self.watcher.status)
