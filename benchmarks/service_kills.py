"""Kill a service repeatedly under load: no acknowledged decision may be lost or stored twice.

Clients send images with ids, and repeat requests until they are acknowledged. The service is killed (SIGKILL) at random
times and started again with the same data folder.
"""

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from secondlook.serving import Client
from secondlook.serving.responses import ServedDecision
from stress.server_process import START_SECONDS, ServerProcess

N_CLIENTS = 16
LONGEST_LIFE = 1.0
"""Maximum lifetime of the service after the first decision, in seconds."""
LONGEST_START = 3.0
KILLED_STARTS = 0.2
"""Fraction of starts killed during the start."""


@dataclass
class KillReport:
    """Counts over all kills, and descriptions of failures."""

    kills: int = 0
    acknowledged: int = 0
    """Images with an acknowledged decision."""
    in_flight: int = 0
    """Requests in flight during a kill, which had to be repeated."""
    stored_unacknowledged: int = 0
    """Those already stored; without an id, repeating them would have decided them twice."""
    reviewed_images: int = 0
    """Images stored for review."""
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def kill_service(
    policy: Path, data_dir: Path, files: Sequence[bytes], *options: str, kills: int, seed: int = 0
) -> KillReport:
    """Kill a service under load, and compare its acknowledged and its stored decisions."""
    started, randomness = time.monotonic(), random.Random(seed)
    report = KillReport()
    with ServerProcess(policy, data_dir, *options) as server:
        clients = [_Sender(server.url, files, number) for number in range(N_CLIENTS)]
        while report.kills < kills:
            _wait_for_decision(clients)
            time.sleep(randomness.uniform(0.0, LONGEST_LIFE))
            server.kill()
            report.kills += 1
            waiting = [client.current for client in clients if client.current is not None]
            report.in_flight += len(waiting)
            report.stored_unacknowledged += _count_stored(data_dir, waiting)
            if report.kills < kills and randomness.random() < KILLED_STARTS:
                server.launch()
                time.sleep(randomness.uniform(0.0, LONGEST_START))
                server.kill()
                report.kills += 1
            server.start()
        for client in clients:
            client.finish()
    report.failures += [failure for client in clients for failure in client.failures]
    acknowledged = {made.id: made for client in clients for made in client.acknowledged}
    report.acknowledged = len(acknowledged)
    compare_rows(data_dir, acknowledged, report)
    report.seconds = time.monotonic() - started
    return report


def _wait_for_decision(clients: Sequence["_Sender"]) -> None:
    """Wait until the service decides: clients that lost their connection wait before they reconnect."""
    before = sum(len(client.acknowledged) for client in clients)
    deadline = time.monotonic() + START_SECONDS
    while sum(len(client.acknowledged) for client in clients) == before and time.monotonic() < deadline:
        time.sleep(0.005)


class _Sender:
    """A client that sends images in order, each with a new id, until it is asked to finish."""

    def __init__(self, url: str, files: Sequence[bytes], number: int) -> None:
        self.acknowledged: list[ServedDecision] = []
        self.failures: list[str] = []
        self.current: str | None = None
        """Id of the image in flight."""
        self._client = Client(url, timeout=2 * START_SECONDS)
        self._files, self._number = files, number
        self._is_over = Event()
        self._thread = Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        number, first = 0, self._number * len(self._files) // N_CLIENTS
        while not self._is_over.is_set():
            self.current = f"client-{self._number}-{number}"
            file = self._files[(first + number) % len(self._files)]
            try:
                self.acknowledged.append(self._client.decide(file, id=self.current))
            except Exception as error:  # noqa: BLE001 -- any error is a failure
                self.failures.append(f"{self.current} failed: {error}")
            self.current = None
            number += 1

    def finish(self) -> None:
        """Send nothing new, and wait for the last decision."""
        self._is_over.set()
        self._thread.join()
        self._client.close()


def _count_stored(data_dir: Path, ids: Sequence[str]) -> int:
    marks = ",".join("?" * len(ids))
    ((count,),) = _query(data_dir, f"select count(*) from decisions where id in ({marks})", ids)
    return int(str(count))


def compare_rows(data_dir: Path, acknowledged: dict[str, ServedDecision], report: KillReport) -> None:
    """Check that each acknowledged image has one row, with this decision, and an image if it needs a review."""
    rows = _query(
        data_dir,
        "select d.id, d.label, d.confidence, d.accept, r.number is not null, length(i.content) from decisions d "
        "left join reviews r on r.number = d.number left join images i on i.number = d.number",
    )
    found: dict[str, list[tuple[object, ...]]] = {}
    for id_, *values in rows:
        found.setdefault(str(id_), []).append(tuple(values))
    for id_ in acknowledged.keys() - found.keys():
        report.failures.append(f"{id_} was acknowledged and is lost")
    for id_ in found.keys() - acknowledged.keys():
        report.failures.append(f"{id_} is stored and was never acknowledged, although its client went on until it was")
    for id_ in found.keys() & acknowledged.keys():
        report.failures += [f"{id_}: {fault}" for fault in _describe_faults(acknowledged[id_], found[id_])]
        report.reviewed_images += not acknowledged[id_].accept


def _describe_faults(made: ServedDecision, rows: list[tuple[object, ...]]) -> Iterator[str]:
    if len(rows) != 1:
        yield f"has {len(rows)} rows"
    label, confidence, accept, is_reviewed, n_bytes = rows[0]
    if (label, confidence, accept) != (made.label, made.confidence, made.accept):
        yield f"was acknowledged as {made.label}, {made.confidence}, {made.accept}, stored as {rows[0][:3]}"
    if bool(is_reviewed) != (made.review != "none"):
        yield f"has review {made.review!r}, stored as {is_reviewed}"
    if is_reviewed and not n_bytes:
        yield "needs a review, but its image is missing"


def _query(data_dir: Path, text: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(data_dir / "service.db", timeout=30)
    try:
        return connection.execute(text, values).fetchall()
    finally:
        connection.close()
