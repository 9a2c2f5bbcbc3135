"""A monitor that follows the stream of a policy in the database, and goes on where it stopped."""

import logging
import time
from pathlib import Path

from secondlook.errors import MonitoringError
from secondlook.monitoring import Monitor
from secondlook.policies import Policy
from secondlook.serving.database import Database
from secondlook.serving.policy_stream import PolicyStream
from secondlook.serving.review_store import LabelChange, ReviewStore

OVERLAP_SECONDS = 300.0
"""Changes of labels are read again for so long, since clocks of instances differ."""
COMPARE_SECONDS = 600.0
"""All labels are compared after so long, since a clock may be set back."""

logger = logging.getLogger("secondlook.serving")


class StreamMonitor:
    """Feeds all images of a policy and the labels of its audits to a `Monitor`, each once and in their order.

    The file in the folder makes a restart quick and nothing else: without it, everything is read from the database
    again, with the same result.
    """

    def __init__(self, database: Database, policy: Policy, reviews: ReviewStore, folder: Path) -> None:
        self._stream = PolicyStream(database, policy)
        self._reviews = reviews
        self._path = folder / f"monitor-{policy.checksum[:16]}.json"
        self.monitor, self.last = self._open(policy)
        """The monitor, and the number of the last image that it knows."""
        self.revision = 0
        """Grows with every change."""
        self._is_saved = self.last > 0
        self._labels_read_at: float | None = None
        """When changes of labels were read last, `time.time()`."""
        self._compared_at = 0.0
        """When all labels were compared, `time.monotonic()`."""

    def read_images(self) -> bool:
        """Read the next images, at most one block of them, and return whether there were any."""
        part = next(self._stream.iter_parts(self._stream.list_deployments(), after=self.last), None)
        if part is None:
            return False
        self.monitor.update(part.rows)
        self.last, self._is_saved, self.revision = part.last, False, self.revision + 1
        return True

    def read_labels(self) -> None:
        """Take over labels that were given or taken back since the last time."""
        deployments = list(self._stream.list_deployments())
        now, is_due = time.time(), time.monotonic() - self._compared_at > COMPARE_SECONDS
        if is_due or self._labels_read_at is None:
            self._set_labels(self._reviews.labels(deployments), are_all=True)
            self._compared_at = time.monotonic()
        else:
            since = self._labels_read_at - OVERLAP_SECONDS
            self._set_labels(self._reviews.label_changes(deployments, since), are_all=False)
        self._labels_read_at = now

    def save(self) -> None:
        """Write the state, unless it is written already."""
        if self._is_saved or not self.last:
            return
        digest = self._stream.identify(self.last)
        assert digest is not None, "decisions are never removed"
        # The table of decisions is the one file that is read.
        self.monitor.files = ()
        self.monitor.record_file("decisions", size=self.last, digest=digest, images=self.monitor.images)
        self.monitor.save(self._path)
        self._is_saved = True

    def _open(self, policy: Policy) -> tuple[Monitor, int]:
        """Return the saved monitor and the number of the last image that it knows, or a new monitor and 0."""
        if self._path.exists():
            try:
                monitor = Monitor.load(self._path, policy)
            except MonitoringError as error:
                logger.warning("state of the monitor ignored", extra={"reason": str(error)})
            else:
                # The folder may have been used with another database, or the database restored from a copy.
                read = monitor.files[0] if monitor.files else None
                if read is not None and self._stream.identify(read.size) == read.digest:
                    return monitor, read.size
        return Monitor(policy), 0

    def _set_labels(self, found: list[LabelChange], *, are_all: bool) -> None:
        """Give audits the labels that were found; if these are all, others have none."""
        known = {audit.id: audit.label for audit in self.monitor.audited}
        # Images that came since the last block are not known to the monitor yet; their labels are read again.
        labels: dict[str, int | None] = dict.fromkeys(known) if are_all else {}
        labels |= {one.id: one.label for one in found if one.id in known}
        changed = {id_: label for id_, label in labels.items() if label != known[id_]}
        if changed:
            self.monitor.remove_labels(changed)
            self.monitor.add_labels({id_: label for id_, label in changed.items() if label is not None})
            self._is_saved, self.revision = False, self.revision + 1
