"""Readers: functions that read possibly untrusted files, each with a file of the workspace."""

import hashlib
import json
import os
import shutil
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.policies import read_policy
from stress.workspace import MODEL, SCORE, collect_ensemble, run_command, run_in

UNFINISHED = "unfinished.parquet"
"""Scores of a job interrupted after its last chunk."""
JOB_FOLDER = f"{UNFINISHED}.parts"


@dataclass(frozen=True)
class Reader:
    """A function that reads a file in the current folder and returns its result as text.

    For stored files, the result must equal that of the original file unless there is an error or a warning: the package
    must notice changes to its own files. For inputs, any valid result is fine.
    """

    name: str
    path: str
    read: Callable[[], str]
    stored: bool = False
    share: float = 1.0
    """Relative number of mutants; slow readers get fewer."""


def _digest(*values: Any) -> str:
    parts = [
        np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else repr(value) for value in values
    ]
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _read_source(spec: str) -> Callable[[], str]:
    def read() -> str:
        import reproduction  # noqa: F401 - registers cifar10: and svhn:
        from secondlook.sources import open_source

        source = open_source(spec)
        images = [source.read(index) for index in range(len(source))]
        for image in images:
            assert image.ndim == 3, f"an image of shape {image.shape}"
            assert image.dtype in (np.uint8, np.float32), f"an image of type {image.dtype}"
        return _digest(source.ids, source.labels, source.class_names, source.digest, *images)

    return read


def _read_policy(path: str) -> Callable[[], str]:
    def read() -> str:

        policy = read_policy(path)
        return policy.model_dump_json() + str(policy)

    return read


def _read_run() -> str:
    from secondlook.report import open_run

    run = open_run("run")
    return _digest(run.record.model_dump_json(), run.title, run.command, run.top_k, run.predict_from, _read_all(run))


def _read_all(run: Any) -> str:
    predictions = run.predictions
    return _digest(predictions.ids, predictions.labels, predictions.class_names, predictions.probabilities)


def _read_evaluation() -> str:
    from secondlook.report import open_run

    evaluation = open_run("run").evaluation
    return json.dumps(evaluation.to_dict()) + str(evaluation)


def _read_ledger() -> str:
    from secondlook.policies import Ledger

    return Ledger.read(Path("run/calibrations.json")).model_dump_json()


RUN_USES: dict[str, Callable[[Any], object]] = {
    "properties": lambda run: (run.title, run.command, run.settings, run.preprocessing),
    "predictions": _read_all,
    "evaluation": lambda run: (str(run.evaluation), run.evaluation.to_dict(), run.evaluation.to_frame().to_string()),
    "evaluate": lambda run: str(run.evaluate(progress=False)),
    "certify": lambda run: str(run.certify(risk=0.3, delta=0.3, progress=False)),
    "threshold": lambda run: run.threshold_for(coverage=0.5, progress=False).model_dump_json(),
    "image": lambda run: run.image(0).shape,
    "report": lambda run: run.report(progress=False).notes,
    "info": lambda run: _describe(str(run.path)),
}


def _use_run(*names: str) -> Callable[[], str]:
    """Return a reader that uses a run in several ways; a refused use does not hide the others."""

    def use() -> str:
        from secondlook.errors import SecondLookError
        from secondlook.report import open_run

        run, ledger = open_run("run"), Path("run/calibrations.json")
        before, results, refusals = ledger.read_bytes(), [], []
        for name in names:
            try:
                results.append(RUN_USES[name](run))
            except SecondLookError as error:
                refusals.append(error)
            finally:
                ledger.write_bytes(before)
        if refusals:
            raise refusals[0]
        return repr(results)

    return use


def _use_forged_evaluation() -> str:
    """Use an evaluation with a forged checksum in the record of the run."""
    from secondlook.files import compute_checksum

    path = Path("run/run.json")
    before = path.read_bytes()
    try:
        content = json.loads(Path("run/evaluation.json").read_bytes())
        if isinstance(content, dict):
            path.write_text(json.dumps({**json.loads(before), "evaluation": compute_checksum(content)}))
    except ValueError:
        pass  # not JSON any more: the run refuses it
    try:
        return _use_run("evaluation")()
    finally:
        path.write_bytes(before)


def _use_policy(path: str) -> Callable[[], str]:
    """Return a reader that shows a policy, scores images with it, and monitors the scores."""

    def use() -> str:
        import pyarrow.parquet as pq

        from secondlook.decisions import score
        from secondlook.monitoring import Monitor
        from secondlook.predictions import Execution

        policy = read_policy(path)
        decisions = policy.accept([0.5, 0.9], method=policy.method)
        _describe(path)
        scores = Path("forged.parquet")
        try:
            score(policy, "npz:new.npz", scores, audit=0.5, execution=Execution(progress=False))
            rows = pq.read_table(scores)
            status = Monitor(policy, burn_in=0).update(rows)
            return f"{policy.model_dump_json()} {policy} {decisions} {rows.to_pylist()} {status}"
        finally:
            scores.unlink(missing_ok=True)
            shutil.rmtree(f"{scores}.parts", ignore_errors=True)

    return use


def _describe(what: str) -> None:
    from secondlook.cli.info import info

    info(what)


def _read_ensemble() -> str:
    from secondlook.predictions import Predictions

    return _digest(Predictions.open("store").probabilities)


def prepare_forgery(workspace: Path) -> None:
    """Remove the checksum of the record of the run, as a forger would; collect an ensemble."""
    if (ended := run_in(workspace, collect_ensemble)).code != 0:
        raise RuntimeError(f"preparing an ensemble failed: {ended.text}")
    path = workspace / "run" / "run.json"
    record = json.loads(path.read_bytes())
    del record["checksum"]
    path.write_text(json.dumps(record))


def _read_views() -> str:
    from secondlook.views import ViewSet

    return " ".join(ViewSet("views.txt").texts)


def _read_model() -> str:
    from secondlook.classifiers import load_classifier

    classifier = load_classifier(MODEL)
    images = np.arange(2 * 16 * 16, dtype=np.uint32).reshape(2, 16, 16, 1).astype(np.uint8)
    return _digest(classifier.digest, classifier(images))


def _read_exported_file() -> str:
    from secondlook.decisions import ExportedFile, compile_policy, load_policy
    from secondlook.predictions import Execution

    opened = compile_policy(load_policy("decide.onnx", execution=Execution(device="cpu")))
    assert isinstance(opened, ExportedFile), "its policy came from the file"
    images = np.arange(2 * 16 * 16, dtype=np.uint32).reshape(2, 16, 16, 1).astype(np.uint8)
    return _digest(opened.policy.model_dump_json(), *filter(None.__ne__, opened.decide_images(images)))


def _ask_server() -> str:
    """Classify with a server that sends the bytes of two files."""
    from secondlook.classifiers import load_classifier

    with socketserver.TCPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}/v2/models/m"
            classifier = load_classifier(address, output="logits", timeout=2, retries=0)
            return _digest(classifier(np.zeros((2, 16, 16, 1), dtype=np.uint8)))
        finally:
            server.shutdown()


class _Answer(socketserver.StreamRequestHandler):
    """Reads a request and sends the bytes of a file."""

    timeout = 2

    def handle(self) -> None:
        """Respond to one request and close the connection."""
        request = self.rfile.readline()
        length = 0
        while (line := self.rfile.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.rfile.read(length)
        self.wfile.write(Path("inference.http" if request.startswith(b"POST") else "description.http").read_bytes())


def _read_settings() -> str:
    return _run_quietly("calibrate", "--config", "settings.toml", "--out", "from-settings.json", "--force")


def _read_command_line() -> str:
    words = Path("command.txt").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    return _run_quietly(*(word.replace("\0", "") for word in words))


def _run_quietly(*words: str) -> str:
    """Run a command in this process; exit code 2 is a `SecondLookError`, other codes are failures."""
    from secondlook.errors import SecondLookError

    try:
        run_command(*words)
    except SystemExit as ended:
        if ended.code == 2:
            raise SecondLookError("exit code 2") from None
        if ended.code:
            raise RuntimeError(f"exit code {ended.code}") from None
    return "done"


def _finish_scoring() -> str:
    from secondlook.decisions import score
    from secondlook.predictions import Execution

    pristine = Path("job-backup")
    if not pristine.is_dir():
        shutil.copytree(JOB_FOLDER, pristine)
    try:
        score("policy.json", "npz:new.npz", UNFINISHED, execution=Execution(progress=False))
        return hashlib.sha256(Path(UNFINISHED).read_bytes()).hexdigest()
    finally:
        Path(UNFINISHED).unlink(missing_ok=True)
        shutil.rmtree(JOB_FOLDER, ignore_errors=True)
        shutil.copytree(pristine, JOB_FOLDER)


def interrupt_scoring() -> None:
    """Leave the job folder of a scoring job that was interrupted after its last chunk, and a command line."""
    from secondlook.decisions.chunks import Destination

    line = "calibrate --run run --coverage 0.7 --method mean --predict-from image --top-k 1 --out from-words.json"
    Path("command.txt").write_text(line.replace(" ", "\n"))
    vars_of_file: Any = Destination
    vars_of_file.write = lambda *_, **__: os._exit(0)
    run_command(*SCORE.split(), UNFINISHED)
    sys.exit(1)


INPUTS = (
    *(Reader(f"{suffix} image", f"{suffix}/photo.{suffix}", _read_source(f"folder:{suffix}"))
      for suffix in ("png", "jpg", "webp", "bmp", "tif")),
    Reader("npz archive", "labeled.npz", _read_source("npz:labeled.npz")),
    Reader("compressed npz archive", "new.npz", _read_source("npz:new.npz")),
    Reader("csv table", "list.csv", _read_source("csv:list.csv")),
    Reader("indices as text", "indices.txt", _read_source("npz:labeled.npz?indices=indices.txt")),
    Reader("indices as npy", "indices.npy", _read_source("npz:labeled.npz?indices=indices.npy")),
    Reader("CIFAR-10 pickle", "cifar/test_batch", _read_source("cifar10:cifar")),
    Reader("SVHN mat file", "svhn/test_32x32.mat", _read_source("svhn:svhn"), share=0.02),
    Reader("views file", "views.txt", _read_views),
    Reader("ONNX model", "model.onnx", _read_model),
    Reader("description from a server", "description.http", _ask_server, share=0.3),
    Reader("outputs from a server", "inference.http", _ask_server, share=0.3),
    Reader("settings file", "settings.toml", _read_settings, share=0.3),
    Reader("command line", "command.txt", _read_command_line, share=0.3),
)  # fmt: skip


def find_stored(workspace: Path) -> list[Reader]:
    """Return a reader for every kind of stored file, with one chunk of each kind."""
    entry = _find_entry(workspace)
    chunk = next(iter(sorted(entry.rglob("part-000001-*.parquet")))).relative_to(workspace)
    place = entry.relative_to(workspace)
    images = next((entry / "images").iterdir()).relative_to(workspace)
    scores = next((workspace / JOB_FOLDER).glob("part-000001-*")).relative_to(workspace)
    return [
        Reader("exported file", "decide.onnx", _read_exported_file, stored=True),
        Reader("policy", "policy.json", _read_policy("policy.json"), stored=True),
        Reader("adaptive policy", "adaptive.json", _read_policy("adaptive.json"), stored=True),
        Reader("run record", "run/run.json", _read_run, stored=True),
        Reader("evaluation", "run/evaluation.json", _read_evaluation, stored=True),
        Reader("ledger", "run/calibrations.json", _read_ledger, stored=True),
        Reader("manifest", str(place / "manifest.json"), _read_run, stored=True),
        Reader("images of an entry", str(images), _read_run, stored=True),
        Reader("chunk of predictions", str(chunk), _read_run, stored=True),
        Reader("record of a scoring job", f"{JOB_FOLDER}/_job.json", _finish_scoring, stored=True),
        Reader("chunk of scores", str(scores), _finish_scoring, stored=True, share=0.3),
    ]


def find_forged(workspace: Path) -> list[Reader]:
    """Return a reader for every record that people can write."""
    manifest = _find_entry(workspace).relative_to(workspace) / "manifest.json"
    (ensemble,) = (path.relative_to(workspace) for path in (workspace / "store").rglob("ensemble.json"))
    return [
        Reader("policy", "certified.json", _use_policy("certified.json")),
        Reader("adaptive policy", "adaptive.json", _use_policy("adaptive.json")),
        Reader("run record", "run/run.json", _use_run(*(name for name in RUN_USES if name != "report"))),
        Reader("run record in a report", "run/run.json", _use_run("report"), share=0.1),
        Reader("evaluation", "run/evaluation.json", _use_forged_evaluation),
        Reader("ledger", "run/calibrations.json", _use_run("certify")),
        Reader("ledger in a report", "run/calibrations.json", _use_run("report"), share=0.1),
        Reader("manifest", str(manifest), _use_run("predictions", "certify", "info")),
        Reader("ensemble", str(ensemble), _read_ensemble),
        Reader("record of a scoring job", f"{JOB_FOLDER}/_job.json", _finish_scoring, share=0.3),
    ]


def _find_entry(workspace: Path) -> Path:
    """Return the folder of the predictions of the run."""
    return next(path.parent for path in (workspace / "run" / "predictions").rglob("manifest.json"))
