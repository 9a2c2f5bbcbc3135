"""The service on loopback: throughput compared with `score`, latency at half of it, exports, and kills under load.

python benchmarks/service.py                          # the sizes of the stored results
python benchmarks/service.py --images 1000 --rounds 2 --kills 3
python benchmarks/service.py --only kills             # one part; keeps the rows of the others

Needs ../shared/cifar10 (test.npz, resnet20.onnx and resnet56.onnx). The throughput is measured with 64 clients that
send PNG files of CIFAR-10 images, each over its own connection, as a ratio to `score` of the same files and policy;
both alternate, and the result is the median ratio. The clients run on the cores of the service. The latency is measured
at half that throughput, with requests at random times (a Poisson process), from the due time of a request, including
all waiting. Exports are files of 50,000 images to review with their pictures. service_kills.py describes the kills.
"""

import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np

from measurement import (
    CIFAR10,
    PACKAGES,
    Row,
    create_parser,
    load_cifar10_classifier,
    make_row,
    print_table,
    read_rows,
    write_results,
)
from secondlook import Decision, load_policy
from secondlook.classifiers import Classifier
from secondlook.decisions import encode_png, score
from secondlook.policies import Policy, read_policy, threshold_for
from secondlook.predictions import Execution, collect
from secondlook.serving.database import open_database
from secondlook.serving.store import DecisionStore, NewDecision, StoredImage
from secondlook.sources import open_source
from service_kills import kill_service
from service_load import Load, draw_arrivals, make_requests, run_load
from stress.server_process import ServerProcess

VIEWS = "cifar10"
COVERAGE = 0.9
CALIBRATION_IMAGES = 500
"""Number of images to fit the policies; the others are sent."""
N_CLIENTS = 64
MAX_CONNECTIONS = 256
MIN_RATIO = 0.9
SERVICE_PACKAGES = (*PACKAGES, "fastapi", "uvicorn", "sqlalchemy")
PARTS = ("speed", "exports", "kills")
EXPORTED_IMAGES, BLOCK = 50_000, 5_000
FORMATS = ("csv", "parquet", "label-studio")
MODELS = {"resnet20": 1.0, "resnet56": 0.25}
"""The networks, each with its fraction of the images: the larger one takes three times as long."""


def main() -> None:
    """Measure, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--images", type=int, default=4000, help="images per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of throughput (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=30, help="length of a latency measurement (default: %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=200, help="number of kills (default: %(default)s)")
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    options = parser.parse_args()
    if not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    path = options.out / "service.csv"
    rows = [row for row in read_rows(path) if options.only and row["part"] != options.only]
    with tempfile.TemporaryDirectory() as folder:
        for model, fraction in MODELS.items() if options.only in (None, "speed") else ():
            workspace = Workspace(Path(folder) / model, model, int(fraction * options.images))
            rows += measure_speed(workspace, options.rounds, options.seconds)
        if options.only in (None, "exports"):
            rows += measure_exports(Workspace(Path(folder) / "exports", next(iter(MODELS)), 100))
        if options.only in (None, "kills"):
            rows += measure_kills(Workspace(Path(folder) / "kills", next(iter(MODELS)), options.images), options.kills)
    write_results(path, rows, SERVICE_PACKAGES)
    print_table(rows, "The service")


class Workspace:
    """A folder with image files and policies."""

    def __init__(self, folder: Path, model: str, n_images: int) -> None:
        self.folder, self.model = folder, model
        source = open_source(f"npz:{CIFAR10 / 'test.npz'}", limit=CALIBRATION_IMAGES + n_images)
        images = np.stack([source.read(index) for index in range(len(source))])
        self.files = [encode_png(image) for image in images[CALIBRATION_IMAGES:]]
        self.images = folder / "images"
        self.images.mkdir(parents=True)
        for number, file in enumerate(self.files):
            (self.images / f"{number:06d}.png").write_bytes(file)
        self.classifier: Classifier = load_cifar10_classifier(CIFAR10 / f"{model}.onnx")
        preds = collect(self.classifier, images[:CALIBRATION_IMAGES], VIEWS, execution=Execution(progress=False))
        rule = threshold_for(preds, "mean", coverage=COVERAGE, adaptive=True)
        assert rule.schedule is not None, "the rule is adaptive"
        self.policies = {
            "all looks": self._save("all", rule.model_copy(update={"schedule": None}), preds.views.texts),
            "adaptively": self._save("adaptive", rule, rule.schedule.views),
        }
        self._numbers = count()

    def _save(self, name: str, rule: Policy, views: tuple[str, ...]) -> Path:
        path = self.folder / f"{name}.json"
        rule.replace(classifier=self.classifier, views=views).save(path)
        return path

    def make_requests(self, n_requests: int) -> list[bytes]:
        """Return requests with new ids."""
        start = next(self._numbers)
        files = [self.files[number % len(self.files)] for number in range(n_requests)]
        return make_requests(files, [f"{start}-{number}" for number in range(n_requests)])


def measure_speed(workspace: Workspace, rounds: int, seconds: float) -> list[Row]:
    """Measure throughput and latency with all looks and adaptively."""
    rows: list[Row] = []
    for name, policy in workspace.policies.items():
        with ServerProcess(policy, workspace.folder / f"service-{policy.stem}") as server:
            rows += measure_throughput(workspace, name, policy, server, rounds)
            rate = float(str(rows[-2]["value"])) / 2
            rows += measure_latency(workspace, name, server, rate, seconds)
    return rows


def measure_throughput(workspace: Workspace, name: str, policy: Path, server: ServerProcess, rounds: int) -> list[Row]:
    """Compare 64 clients with `score`, in alternation."""
    n_images = len(workspace.files)
    jobs = (partial(time_clients, workspace, server), partial(time_score, workspace, policy))
    for job in jobs:  # compile the kernels, open the files
        job()
    measured = [[job() for job in jobs] for _ in range(rounds)]
    served, scored = (n_images / median(seconds) for seconds in zip(*measured, strict=True))
    ratio = median(score_seconds / serve_seconds for serve_seconds, score_seconds in measured)
    what = f"{workspace.model}, {name}"
    return [
        make_part_row("speed", f"{what}: score", "images/s", scored),
        make_part_row("speed", f"{what}: {N_CLIENTS} clients", "images/s", served),
        make_part_row("speed", f"{what}: {N_CLIENTS} clients", "ratio to score", ratio, f">= {MIN_RATIO}"),
    ]


def time_clients(workspace: Workspace, server: ServerProcess) -> float:
    """Return the seconds that the service needs for all images."""
    return check_load(run_load(server.port, workspace.make_requests(len(workspace.files)), N_CLIENTS)).seconds


def time_score(workspace: Workspace, policy: Path) -> float:
    """Return the seconds that `score` needs for all images."""
    with tempfile.TemporaryDirectory(dir=workspace.folder) as folder:
        started = time.perf_counter()
        score(
            read_policy(policy),
            f"folder:{workspace.images}",
            Path(folder) / "scores.parquet",
            classifier=workspace.classifier,
            execution=Execution(progress=False),
        )
        return time.perf_counter() - started


def measure_latency(workspace: Workspace, name: str, server: ServerProcess, rate: float, seconds: float) -> list[Row]:
    """Measure the latency of requests at random times."""
    n_requests = max(100, int(rate * seconds))
    # Each is used about once a second, because the service closes idle connections.
    n_connections = min(MAX_CONNECTIONS, max(N_CLIENTS, int(rate)))
    arrivals = draw_arrivals(rate, n_requests, seed=0)
    load = run_load(server.port, workspace.make_requests(n_requests), n_connections, arrivals)
    latencies = 1000 * check_load(load).latencies
    what = f"{workspace.model}, {name}: half of that load, {rate:.0f} requests/s"
    return [
        make_part_row("speed", what, f"p{percent} milliseconds", float(np.percentile(latencies, percent)))
        for percent in (50, 99)
    ]


def measure_exports(workspace: Workspace) -> list[Row]:
    """Export a long review queue."""
    policy, data_dir = workspace.policies["all looks"], workspace.folder / "service-exports"
    with ServerProcess(policy, data_dir):  # puts the policy in force
        pass
    fill_queue(workspace, data_dir)
    rows = []
    with ServerProcess(policy, data_dir) as server:
        for name in FORMATS:
            start = time.perf_counter()
            with urllib.request.urlopen(f"{server.url}/v1/reviews?format={name}") as response:
                n_bytes = sum(map(len, iter(partial(response.read, 2**20), b"")))
            what = f"export of {EXPORTED_IMAGES:,} images, {name}"
            rows.append(make_part_row("exports", what, "seconds", time.perf_counter() - start, "at most 10"))
            rows.append(make_part_row("exports", what, "MB", n_bytes / 1e6))
    return rows


def fill_queue(workspace: Workspace, data_dir: Path) -> None:
    """Store images to review, without looking at them."""
    decided = load_policy(workspace.policies["all looks"], classifier=workspace.classifier).decide(workspace.files[0])
    rejected = vars(decided) | {"accept": False, "audit": False}
    database = open_database(data_dir)
    store = DecisionStore(database)
    deployment = store.latest_deployment()
    assert deployment is not None, "the service was started"
    for start in range(0, EXPORTED_IMAGES, BLOCK):
        numbers = range(start, start + BLOCK)
        files = [StoredImage("image/png", workspace.files[number % len(workspace.files)]) for number in numbers]
        queued = [Decision(**rejected | {"id": f"{number:06d}"}) for number in numbers]
        new = [NewDecision(decision, "", None, file) for decision, file in zip(queued, files, strict=True)]
        store.add(new, deployment.number)
    database.close()


def measure_kills(workspace: Workspace, kills: int) -> list[Row]:
    """Kill the service under load."""
    folder = workspace.folder / "service-kills"
    report = kill_service(workspace.policies["all looks"], folder, workspace.files, kills=kills)
    for failure in report.failures[:20]:
        print(failure)
    what = f"{report.kills} kills under load"
    row: Callable[..., Row] = partial(make_part_row, "kills", what)
    return [
        row("acknowledged", report.acknowledged),
        row("in flight when killed, repeated", report.in_flight),
        row("of them stored already", report.stored_unacknowledged),
        row("to review, with their image", report.reviewed_images),
        row("lost, twice or different", len(report.failures), "0"),
        row("seconds", report.seconds),
    ]


def check_load(load: Load) -> Load:
    """Check that all requests of a load were served, and return it."""
    assert load.failures == 0, f"{load.failures} requests failed"
    return load


def make_part_row(part: str, what: str, measure: str, value: float, target: str = "") -> Row:
    """Return a row with its part."""
    return {"part": part, **make_row(what, measure, value, target)}


if __name__ == "__main__":
    main()
