"""`Watcher`: the thread that monitors decisions and reviews, and computes the dashboard status."""

import itertools
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from secondlook import Monitor, __version__
from secondlook.extension import MonitoringError, Policy, SecondLookError, describe_monitor_plots
from secondlook.serving.alarms import AlarmBook, find_state, list_raised, list_resets
from secondlook.serving.database import Database, StorageError, decisions, format_time, settings
from secondlook.serving.store import DecisionStore, Deployment, ReviewStore
from secondlook.serving.trail import AGREEING

if TYPE_CHECKING:
    from secondlook.serving.service import Service

MINUTE = 60
HISTORY_MINUTES = 60
LABELS_PER_ROUND = 10_000
"""Up to this number, labels are compared every round, up to twice as many every second round, and so on."""
ROUND_SECONDS = 2.0
SAVE_SECONDS = 60.0
"""Interval for saving the monitor state; after a restart, later decisions are read from the database."""
CHECK_SECONDS = 5.0
"""Interval for checking that the database is writable."""
SILENT_SECONDS = 60.0
"""Time after which an unresponsive database counts as lost."""
TIDY_SECONDS = 60.0
NO_REFERENCE = "Cannot detect changes: the policy has no reference of its calibration images. Calibrate again."

logger = logging.getLogger("secondlook.serving")


class Activity:
    """Counts the decisions of all instances, reading each from the database once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.newest = 0
        """Number of the last counted decision."""
        self.by_deployment: dict[int, Counter[str]] = defaultdict(Counter)
        """Numbers of images, accepted images and looks."""
        self._by_minute: dict[int, Counter[str]] = defaultdict(Counter)
        self.last_minute = 0
        """Images of the last 60 seconds."""

    def update(self, now: float) -> None:
        """Count new decisions, and drop minutes older than an hour."""
        # Databases differ in rounding, and not all have a floor function.
        rounded = sa.cast(decisions.c.decided_at, sa.BigInteger)
        seconds = rounded - sa.case((rounded > decisions.c.decided_at, 1), else_=0)
        minute = (seconds // MINUTE).label("minute")
        sums = (sa.func.count(), sa.func.sum(sa.cast(decisions.c.accept, sa.Integer)), sa.func.sum(decisions.c.looks))
        with self._database.read() as connection:
            last = connection.execute(sa.select(sa.func.max(decisions.c.number))).scalar() or 0
            is_new = (decisions.c.number > self.newest) & (decisions.c.number <= last)
            query = sa.select(decisions.c.deployment, minute, *sums).where(is_new)
            rows = connection.execute(query.group_by(decisions.c.deployment, "minute")).all()
            is_recent = decisions.c.decided_at > now - MINUTE
            recent = connection.execute(sa.select(sa.func.count()).select_from(decisions).where(is_recent)).scalar()
        self.last_minute = recent or 0
        for deployment, at, images, accepted, looks in rows:
            for counts in (self.by_deployment[deployment], self._by_minute[at]):
                counts.update(images=images, accepted=int(accepted), looks=int(looks))
        self.newest = last
        oldest = int(now) // MINUTE - HISTORY_MINUTES
        for at in [at for at in self._by_minute if at <= oldest]:
            del self._by_minute[at]

    def describe(self, now: float) -> dict[str, Any]:
        """Return images per second, and the minutes of the last hour, oldest first; the last is incomplete."""
        latest = int(now) // MINUTE
        minutes = [(at, self._by_minute.get(at, Counter())) for at in range(latest - HISTORY_MINUTES + 1, latest + 1)]
        images = sum(counts["images"] for _, counts in minutes)
        return {
            "minute": {"images": self.last_minute, "per_second": self.last_minute / MINUTE},
            "hour": {"images": images, "per_second": images / (now - MINUTE * minutes[0][0])},
            "minutes": [
                {"start": format_time(MINUTE * at), "images": counts["images"], "accepted": counts["accepted"]}
                for at, counts in minutes
            ],
        }


class StreamMonitor:
    """Feeds all images and labels of a policy to a `Monitor`, once each and in order.

    The file in the folder is only a cache for restarts: without it, everything is read from the database again, with
    the same result.
    """

    def __init__(
        self, database: Database, policy: Policy, reviews: ReviewStore, folder: Path, *, reviewer_error: float = 0.0
    ) -> None:
        self._policy, self._store, self._reviews = policy, DecisionStore(database), reviews
        self._errors: dict[str, Any] = {"reviewer_error": reviewer_error, "agreeing": AGREEING if reviewer_error else 1}
        self._database = database
        self._path = folder / f"monitor-{policy.checksum[:16]}.json"
        self.monitor, self.last = self._open()
        """The monitor, and the number of its last image."""
        self._is_saved = self.last > 0
        self._described: dict[str, Any] | None = None
        self._starts: list[tuple[int, float]] = []
        """Number and time of the first image of each window, before windows were merged."""

    def read_images(self) -> bool:
        """Read the next block of images, and return whether there was one. Resets of the shift alarm are repeated."""
        audits = self._store.find_audits(self._policy)
        found = next(self._store.iter_score_tables(self._policy, audits, after=self.last), None)
        # Read after the images: a reset is stored before the first image after it.
        resets = list_resets(self._database, self._policy.checksum)[len(self.monitor.resets) :]
        self.last, rows = found or (self.last, None)
        for reset in resets:
            ahead = reset - self.monitor.images
            if ahead > (0 if rows is None else len(rows)):
                break
            if rows is not None and ahead:
                self.monitor.add_images(rows.slice(0, ahead))
                rows = rows.slice(ahead)
            self.monitor.reset_shift()
            self._is_saved, self._described = False, None
        if rows is None:
            return False
        self.monitor.add_images(rows)
        self._is_saved, self._described = False, None
        return True

    def read_labels(self) -> None:
        """Apply new and undone labels."""
        found = self._reviews.labels(list(self._store.find_audits(self._policy)))
        # The monitor does not know images after the last block yet; their labels are read in a later round.
        known = self.monitor.labels
        changed = {id_: found.get(id_) for id_, label in known.items() if label != found.get(id_)}
        if changed:
            self.monitor.remove_labels(changed)
            self.monitor.add_labels({id_: label for id_, label in changed.items() if label is not None})
            self._is_saved, self._described = False, None

    def describe(self) -> dict[str, Any]:
        """Return the monitor status for the dashboard, as JSON values."""
        if self._described is None:
            status = self.monitor.describe()
            plots = describe_monitor_plots(self.monitor, status)
            plots["timeline"]["times"] = self._find_times(plots["timeline"]["windows"])
            self._described = {
                **status.to_dict(),
                "burn_in": self.monitor.burn_in,
                "in_burn_in": status.in_burn_in,
                "wrong_images": self._list_wrong_images(),
                **plots,
            }
        return self._described

    def _list_wrong_images(self) -> list[dict[str, Any]]:
        wrong = [image for image in self.monitor.worst_images() if image.wrong]
        stored = self._store.find([image.id for image in wrong])
        return [
            {
                **image.to_dict(self._policy.class_names),
                **{name: getattr(stored[image.id], name) for name in ("number", "has_image", "reviewer")},
                "reviewed_at": format_time(stored[image.id].reviewed_at or 0),
            }
            for image in wrong
            if image.id in stored
        ]

    def _find_times(self, windows: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the times of the first image of each window, and of the last image, in ascending order."""
        place = sa.func.row_number().over(order_by=decisions.c.number).label("place")
        first = self._starts.pop()[0] if self._starts else 0
        is_new = decisions.c.deployment.in_(list(self._store.find_audits(self._policy)))
        columns = sa.select(place, decisions.c.number, decisions.c.decided_at)
        rows = columns.where(is_new, decisions.c.number.between(first, self.last)).subquery()
        is_start = (rows.c.place - 1) % self.monitor.window == 0
        wanted = sa.select(rows, is_start.label("is_start")).where(is_start | (rows.c.number == self.last))
        found = self._database.fetch(wanted.order_by(rows.c.number))
        self._starts += [(row.number, row.decided_at) for row in found if row.is_start]
        starts = [self._starts[window["start"] // self.monitor.window][1] for window in windows]
        return list(itertools.accumulate([*starts, *(row.decided_at for row in found[-1:])], max))

    def save(self) -> None:
        """Save the state, if it has changed."""
        if self._is_saved or not self.last:
            return
        digest = self._store.identify(self.last)
        assert digest is not None, "decisions are never removed"
        # To the monitor, the table of decisions is its only file.
        self.monitor.files = ()
        self.monitor.record_file("decisions", size=self.last, digest=digest, images=self.monitor.images)
        self.monitor.save(self._path)
        self._is_saved = True

    def _open(self) -> tuple[Monitor, int]:
        """Return the saved monitor and the number of its last image, or a new monitor and 0."""
        if self._path.exists():
            try:
                monitor = Monitor.load(self._path, self._policy)
            except MonitoringError as error:
                logger.warning("state of the monitor ignored", extra={"reason": str(error)})
            else:
                # The folder may belong to another database, or the database may be restored from a backup.
                read = monitor.files[0] if monitor.files else None
                resets = tuple(list_resets(self._database, self._policy.checksum)[: len(monitor.resets)])
                is_same = resets == monitor.resets and monitor.options.items() >= self._errors.items()
                if read is not None and is_same and self._store.identify(read.size) == read.digest:
                    return monitor, read.size
        return Monitor(self._policy, **self._errors), 0


class Watcher:
    """Updates the monitor and the dashboard status every two seconds, from the decisions of all instances."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._activity = Activity(service.database)
        self._stream: StreamMonitor | None = None
        self.alarms = AlarmBook(service.database, service.options.webhook)
        self._round = 0
        self._storage_problem: str | None = "the service is starting"
        self._checked_at = self._saved_at = time.monotonic()
        self._tidied_at = -math.inf
        self.started_at = time.time()
        self.status: Mapping[str, Any] = {}
        """The dashboard status as JSON values; empty until the first update."""
        self._lock = RLock()
        self._is_stopping = Event()
        self._thread = Thread(target=self._run, name="secondlook-watch", daemon=True)
        service.metrics.waiting.set_function(lambda: service.worker.waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and save the state of the monitor."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            try:
                self._save()
            except SecondLookError as error:  # a restart takes a little longer
                logger.warning("state of the monitor not saved", extra={"reason": str(error)})
        self.alarms.close()

    def look(self) -> None:
        """Read new decisions and labels, and update the status."""
        with self._lock:
            try:
                self._look()
            except SecondLookError as error:
                logger.warning("watching failed", extra={"reason": str(error)})
                self._publish({**self.status, "problem": str(error)})
            except Exception:  # must not stop the service
                logger.exception("watching failed")
                problem = "Updating the numbers failed; see the log of the service."
                self._publish({**self.status, "problem": problem})

    def find_problem(self) -> str | None:
        """Return the reason why decisions cannot be stored, without secrets; None if they can."""
        silent = time.monotonic() - self._checked_at
        if self._storage_problem is None and silent > SILENT_SECONDS:
            return f"the database did not respond for {silent:.0f} seconds"
        return self._storage_problem

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self.look()
            self._is_stopping.wait(ROUND_SECONDS)

    def _look(self) -> None:
        service = self._service
        self._check_storage()
        service.refresh()
        keep = service.options.keep
        if keep is not None and time.monotonic() - self._tidied_at >= TIDY_SECONDS:
            service.reviews.remove_expired(keep)
            self._tidied_at = time.monotonic()
        self._activity.update(time.time())
        self._open_stream()
        if self._stream is not None:
            newest = self._activity.newest
            while self._stream.read_images() and self._stream.last < newest and not self._is_stopping.is_set():
                self._check_storage()
                self._publish(self._describe())  # after a restart without saved state, there may be millions of images
                self._save_if_due()
            if self._round % (1 + len(self._stream.monitor.labels) // LABELS_PER_ROUND) == 0:
                self._stream.read_labels()
        self._round += 1
        self._update_alarms()
        self._publish(self._describe())
        self._save_if_due()

    def _update_alarms(self) -> None:
        deployment, stream = self._service.live.deployment, self._stream
        raised = {} if stream is None else list_raised(stream.describe())
        resets = () if stream is None else stream.monitor.resets
        self.alarms.update(deployment.number, deployment.checksum, raised, len(resets))

    def _check_storage(self) -> None:
        """Check at intervals that the database is writable."""
        if self._storage_problem is None and time.monotonic() - self._checked_at < CHECK_SECONDS:
            return
        try:
            with self._service.database.write() as connection:
                connection.execute(sa.delete(settings).where(settings.c.name == "checked"))
                connection.execute(sa.insert(settings).values(name="checked", value=str(time.time())))
        except StorageError as error:
            self._storage_problem = "the service cannot write to its database"
            logger.error("storage failed", extra={"reason": str(error)})
            self.alarms.report_storage("The service cannot write to its database.")
            raise
        self._storage_problem, self._checked_at = None, time.monotonic()
        self.alarms.report_storage(None)

    def _open_stream(self) -> None:
        """Open the stream of the policy in force."""
        deployment, service = self._service.live.deployment, self._service
        policy, error = deployment.policy, deployment.reviewer_error
        monitor = None if self._stream is None else self._stream.monitor
        if monitor is not None and (monitor.policy.checksum, monitor.reviewer_error) == (policy.checksum, error):
            return
        self._save()
        self._stream = None
        if policy.reference is not None:
            folder = service.options.data_dir
            self._stream = StreamMonitor(service.database, policy, service.reviews, folder, reviewer_error=error)

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        if self._stream is not None:
            self._stream.save()
        self._saved_at = time.monotonic()

    def _publish(self, status: Mapping[str, Any]) -> None:
        self.status = self._service.metrics.status = {**status, "state": find_state(status)}

    def _describe(self) -> dict[str, Any]:
        service, now = self._service, time.time()
        return {
            "time": format_time(now),
            "version": __version__,
            "problem": None,
            "policy": describe_deployment(service.live.deployment),
            "throughput": self._activity.describe(now),
            "decisions": describe_counts(sum(self._activity.by_deployment.values(), Counter())),
            "reviews": service.reviews.counts().model_dump(),
            "reviews_per_minute": service.reviews.pace("").everyone,
            "instance": {
                "started_at": format_time(self.started_at),
                "images_waiting": service.worker.waiting,
                "max_waiting": service.options.max_waiting,
                "overloads": service.metrics.read_count("overloads"),
                "storage_failures": service.metrics.read_count("storage_failures"),
                "stores_images": service.options.store_images,
                "keep_seconds": service.options.keep,
            },
            "deployments": [
                describe_deployment(one) | describe_counts(self._activity.by_deployment[one.number])
                for one in service.decisions.list_deployments()
            ],
            "monitor": None if self._stream is None else self._stream.describe(),
            "monitor_missing": NO_REFERENCE if self._stream is None else None,
            "alarms": self.alarms.list_latest(),
        }


def describe_counts(counts: Counter[str]) -> dict[str, Any]:
    """Return image counts and shares as JSON values."""
    images, accepted = counts["images"], counts["accepted"]
    shares = {"coverage": accepted / images, "looks_per_image": counts["looks"] / images} if images else {}
    return {"images": images, "accepted": accepted, "coverage": None, "looks_per_image": None} | shares


def describe_deployment(deployment: Deployment) -> dict[str, Any]:
    """Return the main facts about a deployment, as JSON values."""
    policy, guarantee = deployment.policy, deployment.policy.guarantee
    return {
        "deployment": deployment.number,
        "deployed_at": format_time(deployment.deployed_at),
        "audit": deployment.audit,
        "checksum": policy.checksum,
        "made": policy.made,
        "classifier": policy.known_classifier.name,
        "method": policy.method,
        "threshold": policy.threshold,
        "views": len(policy.views),
        "is_adaptive": policy.schedule is not None,
        "guarantee": None if guarantee is None else {"risk": guarantee.risk, "delta": guarantee.delta},
        "guarantee_text": policy.guarantee_text,
    }
