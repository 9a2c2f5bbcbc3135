"""`Watcher`: the thread that follows all decisions and reviews, and knows what the dashboard shows."""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from secondlook import __version__
from secondlook.errors import SecondLookError
from secondlook.report import describe_monitor_plots
from secondlook.serving.activity import MINUTE, Activity, DecisionCounts
from secondlook.serving.database import StorageError
from secondlook.serving.decision_store import Deployment
from secondlook.serving.schema import settings
from secondlook.serving.stream_monitor import StreamMonitor

if TYPE_CHECKING:
    from secondlook.serving.service import Service

ROUND_SECONDS = 2.0
SAVE_SECONDS = 60.0
"""The state of the monitor is saved after so long; what came later is read from the database again."""
CHECK_SECONDS = 5.0
"""How often it is tried whether the database can be written."""
SILENT_SECONDS = 60.0
"""A database that did not respond for so long is taken for lost."""
TIDY_SECONDS = 60.0
NO_REFERENCE = (
    "The policy does not tell how its calibration images looked, as those of earlier versions do not, so that changes "
    "cannot be noticed. Calibrate again, and put the new policy in force."
)

logger = logging.getLogger("secondlook.serving")


class Watcher:
    """Looks every two seconds at what all instances did, monitors it, and keeps the result for everyone who asks."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._activity = Activity(service.database)
        self._stream: StreamMonitor | None = None
        self._described: tuple[tuple[str, int], dict[str, Any]] | None = None
        """What the monitor knows, with the policy and the revision of which it is."""
        self._deployments: dict[int, Deployment] = {}
        self._storage_problem: str | None = "the service is starting"
        self._checked_at = self._saved_at = time.monotonic()
        self._tidied_at = -TIDY_SECONDS
        self.started_at = time.time()
        self.status: Mapping[str, Any] = {}
        """What the dashboard shows, as JSON values; empty until the first look is over."""
        self._lock = RLock()
        self._is_stopping = Event()
        self._thread = Thread(target=self._run, name="secondlook-watch", daemon=True)
        service.metrics.watch_waiting(lambda: service.worker.waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and save the state of the monitor."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            try:
                self._save()
            except SecondLookError as error:  # a restart takes a little longer
                logger.warning("state of the monitor not saved", extra={"reason": str(error)})

    def look(self) -> None:
        """Read all that is new, and renew the status."""
        with self._lock:
            problem = None
            try:
                self._look()
            except SecondLookError as error:
                logger.warning("watching failed", extra={"reason": str(error)})
                problem = str(error)
            except Exception:  # whatever happens here, decisions go on
                logger.exception("watching failed")
                problem = "The numbers could not be renewed; the reason is in the log of the service."
            if problem is not None:
                self._publish({**self.status, "problem": problem})

    def find_problem(self) -> str | None:
        """Return why decisions cannot be stored, for everyone to read; None if they can."""
        silent = time.monotonic() - self._checked_at
        if self._storage_problem is None and silent > SILENT_SECONDS:
            return f"the database did not respond for {silent:.0f} seconds"
        return self._storage_problem

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self.look()
            self._is_stopping.wait(ROUND_SECONDS)

    def _look(self) -> None:
        self._check_storage()
        self._service.refresh()
        self._tidy()
        self._activity.update(time.time())
        self._open_stream()
        if self._stream is not None:
            newest = self._activity.newest
            while self._stream.read_images() and self._stream.last < newest and not self._is_stopping.is_set():
                self._check_storage()
                self._publish(self._describe())  # after a restart without a state, there may be millions
                self._save_if_due()
            self._stream.read_labels()
        self._publish(self._describe())
        self._save_if_due()

    def _check_storage(self) -> None:
        """Try to write to the database, from time to time."""
        now = time.monotonic()
        if self._storage_problem is None and now - self._checked_at < CHECK_SECONDS:
            return
        try:
            with self._service.database.write() as connection:
                values = {"name": "checked", "value": str(time.time())}
                updated = connection.execute(sa.update(settings).where(settings.c.name == "checked").values(values))
                if not updated.rowcount:
                    connection.execute(sa.insert(settings).values(values))
        except StorageError as error:
            self._storage_problem = "the database cannot be written"
            logger.error("storage failed", extra={"reason": str(error)})
            raise
        self._storage_problem, self._checked_at = None, time.monotonic()

    def _tidy(self) -> None:
        """Remove images whose time is over."""
        keep = self._service.options.keep
        if keep is not None and time.monotonic() - self._tidied_at >= TIDY_SECONDS:
            self._service.reviews.remove_expired(keep)
            self._tidied_at = time.monotonic()

    def _open_stream(self) -> None:
        """Follow the policy in force."""
        policy, service = self._service.live.deployment.policy, self._service
        if self._stream is not None and self._stream.monitor.policy.checksum == policy.checksum:
            return
        self._save()
        self._stream = None
        if policy.reference is not None:
            self._stream = StreamMonitor(service.database, policy, service.reviews, service.options.data_dir)

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        if self._stream is not None:
            self._stream.save()
        self._saved_at = time.monotonic()

    def _publish(self, status: Mapping[str, Any]) -> None:
        self.status = status
        self._service.metrics.set_status(status)

    def _describe(self) -> dict[str, Any]:
        """Return all that is known as JSON values."""
        service, now = self._service, time.time()
        reviews = service.reviews.counts()
        deployments = self._list_deployments(service.live.deployment)
        return {
            "time": format_time(now),
            "version": __version__,
            "problem": None,
            "policy": describe_policy(service.live.deployment),
            "throughput": self._describe_throughput(now),
            "decisions": describe_counts(add_counts(self._activity.by_deployment)),
            "reviews": asdict(reviews),
            "reviews_per_minute": service.reviews.pace("").everyone,
            "instance": {
                "started_at": format_time(self.started_at),
                "images_waiting": service.worker.waiting,
                "max_waiting": service.options.max_waiting,
                "overloads": service.metrics.overloads,
                "storage_failures": service.metrics.storage_failures,
                "stores_images": service.options.store_images,
                "keep_seconds": service.options.keep,
            },
            "deployments": [
                {**describe_policy(one), **describe_counts(self._activity.by_deployment.get(one.number))}
                for one in deployments
            ],
            "monitor": self._describe_monitor(),
            "monitor_missing": None if self._stream is not None else NO_REFERENCE,
        }

    def _list_deployments(self, live: Deployment) -> list[Deployment]:
        """Return all deployments; they never change, so they are read when there is a new one."""
        if live.number not in self._deployments:
            self._deployments = {one.number: one for one in self._service.decisions.list_deployments()}
        return list(self._deployments.values())

    def _describe_throughput(self, now: float) -> dict[str, Any]:
        minutes = self._activity.list_minutes(now)
        start = minutes[0][0]
        images = sum(counts.images for _, counts in minutes)
        return {
            "minute": {"images": self._activity.last_minute, "per_second": self._activity.last_minute / MINUTE},
            "hour": {"images": images, "per_second": images / (now - start)},
            "minutes": [
                {"start": format_time(at), "images": counts.images, "accepted": counts.accepted}
                for at, counts in minutes
            ],
        }

    def _describe_monitor(self) -> dict[str, Any] | None:
        if self._stream is None:
            return None
        monitor = self._stream.monitor
        state = monitor.policy.checksum, self._stream.revision
        if self._described is None or self._described[0] != state:
            status = monitor.describe()
            wrong = [image for image in monitor.worst_images() if image.wrong]
            content = {
                **status.to_dict(),
                "burn_in": monitor.burn_in,
                "in_burn_in": status.in_burn_in,
                "wrong_images": [image.to_dict(monitor.policy.class_names) for image in wrong],
                **describe_monitor_plots(monitor, status),
            }
            self._described = state, content
        return self._described[1]


def describe_policy(deployment: Deployment) -> dict[str, Any]:
    """Return what is worth knowing about a policy and when it was put in force, as JSON values."""
    policy, guarantee = deployment.policy, deployment.policy.rule.guarantee
    return {
        "deployment": deployment.number,
        "deployed_at": format_time(deployment.deployed_at),
        "audit": deployment.audit,
        "checksum": policy.checksum,
        "made": policy.made,
        "classifier": policy.classifier.name,
        "method": policy.method,
        "threshold": policy.threshold,
        "views": len(policy.views),
        "is_adaptive": policy.schedule is not None,
        "guarantee": None if guarantee is None else {"risk": guarantee.risk, "delta": guarantee.delta},
        "guarantee_text": policy.guarantee_text,
    }


def describe_counts(counts: DecisionCounts | None) -> dict[str, Any]:
    """Return counts and shares as JSON values."""
    counts = counts or DecisionCounts()
    return {
        "images": counts.images,
        "accepted": counts.accepted,
        "coverage": counts.accepted / counts.images if counts.images else None,
        "looks_per_image": counts.looks / counts.images if counts.images else None,
    }


def add_counts(counts: Mapping[int, DecisionCounts]) -> DecisionCounts:
    """Return the sum of counts."""
    total = DecisionCounts()
    for one in counts.values():
        total.add(one.images, one.accepted, one.looks)
    return total


def format_time(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
