"""How busy a service is: decisions per deployment and per minute, of all instances together."""

from collections import defaultdict
from dataclasses import dataclass

import sqlalchemy as sa

from secondlook.serving.database import Database
from secondlook.serving.schema import decisions

MINUTE = 60
HISTORY_MINUTES = 60


@dataclass
class DecisionCounts:
    """Numbers of images, of the accepted ones among them, and of the looks at all of them."""

    images: int = 0
    accepted: int = 0
    looks: int = 0

    def add(self, images: int, accepted: int, looks: int) -> None:
        """Add numbers of further images."""
        self.images += images
        self.accepted += accepted
        self.looks += looks


class Activity:
    """Counts the decisions of all instances; each is read from the database once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.newest = 0
        """Number of the last decision that is counted."""
        self.by_deployment: dict[int, DecisionCounts] = defaultdict(DecisionCounts)
        self._by_minute: dict[int, DecisionCounts] = defaultdict(DecisionCounts)
        self.last_minute = 0
        """Images of the last 60 seconds."""

    def update(self, now: float) -> None:
        """Count what is new, and forget minutes that are over an hour old."""
        # Not every database has a floor function, and they do not agree on how to round.
        rounded = sa.cast(decisions.c.decided_at, sa.BigInteger)
        seconds = rounded - sa.case((rounded > decisions.c.decided_at, 1), else_=0)
        minute = (seconds // MINUTE).label("minute")
        counts = (sa.func.count(), sa.func.sum(sa.cast(decisions.c.accept, sa.Integer)), sa.func.sum(decisions.c.looks))
        with self._database.read() as connection:
            last = connection.execute(sa.select(sa.func.max(decisions.c.number))).scalar() or 0
            is_new = (decisions.c.number > self.newest) & (decisions.c.number <= last)
            columns = (decisions.c.deployment, minute, *counts)
            rows = connection.execute(
                sa.select(*columns).where(is_new).group_by(decisions.c.deployment, "minute")
            ).all()
            is_recent = decisions.c.decided_at > now - MINUTE
            recent = connection.execute(sa.select(sa.func.count()).select_from(decisions).where(is_recent)).scalar()
        self.last_minute = recent or 0
        for deployment, at, images, accepted, looks in rows:
            self.by_deployment[deployment].add(images, int(accepted), int(looks))
            self._by_minute[at].add(images, int(accepted), int(looks))
        self.newest = last
        oldest = int(now) // MINUTE - HISTORY_MINUTES
        for at in [at for at in self._by_minute if at <= oldest]:
            del self._by_minute[at]

    def list_minutes(self, now: float) -> list[tuple[int, DecisionCounts]]:
        """Return the minutes of the last hour, oldest first, each with its start in seconds; the last is not over."""
        latest = int(now) // MINUTE
        minutes = range(latest - HISTORY_MINUTES + 1, latest + 1)
        return [(MINUTE * at, self._by_minute.get(at, DecisionCounts())) for at in minutes]
