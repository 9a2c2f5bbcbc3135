"""A pool of digits to label on demand, and a reviewer with the true labels."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import secondlook as sl
from secondlook.cli.demo import digit_images, split_digits
from secondlook.serving import ServiceOptions, labeling, server
from tests.cli.conftest import write_color_model
from tests.serving.running import make_png, read_rows, send

TERMS: dict[str, Any] = {"risk": 0.2, "delta": 0.2, "seed": 3}
N_IMAGES = 60


@dataclass
class Desk:
    """A pool of digits, and a reviewer with the true labels."""

    folder: Path
    preds: sl.Predictions
    source: sl.Source
    classifier: sl.Classifier
    truth: dict[str, int]
    saved: list[int] = field(default_factory=list)
    """How many images were certified whenever a policy was saved."""
    url: str = ""
    is_running: Callable[[], bool] = lambda: False

    def make_plan(self) -> sl.LabelingPlan:
        return sl.LabelingPlan(self.preds, **TERMS)

    @contextmanager
    def open(self, labels: dict[str, int] | None = None) -> Iterator[sl.LabelingPlan]:
        """Serve the page in a thread; it may end by itself."""
        plan, ready = self.make_plan(), threading.Event()

        def announce(url: str) -> None:
            self.url = url
            ready.set()

        task = labeling.LabelingTask(
            plan=plan,
            preds=self.preds,
            source=self.source,
            classifier=self.classifier,
            save=lambda: self.saved.append(plan.progress.accepted),
            where="The policy is in policy.json.",
        )
        made: list[Any] = []
        make_server = server.make_server

        def keep(*arguments: Any, **options: Any) -> Any:
            made.append(make_server(*arguments, **options))
            return made[-1]

        options = ServiceOptions(self.folder / "labels", port=0)

        def run() -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server, "make_server", keep)
                labeling.serve_labeling(task, options, labels or {}, announce)
            ready.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(120)
        self.is_running = thread.is_alive
        yield plan
        for one in made:
            one.should_exit = True
        thread.join(120)
        assert not thread.is_alive()

    def post(self, path: str, **body: Any) -> Any:
        reply = send(f"{self.url}/v1/review/{path}", json.dumps(body).encode(), Content_Type="application/json")
        assert reply.status == 200, reply.body
        return reply.json

    def lease(self, count: int = 1) -> Any:
        return self.post("lease", count=count)

    def label(self, item: Any, label: int | str | None = None) -> Any:
        return self.post(f"{item['number']}/label", label=self.truth[item["id"]] if label is None else label)

    def read_labels(self) -> dict[str, int]:
        query = "SELECT id, reviews.label FROM reviews JOIN decisions USING (number) WHERE reviews.label IS NOT NULL"
        return dict(read_rows(self.folder / "labels", query))


def make_desk(folder: Path) -> Desk:
    """Make the pool and its predictions."""
    images, labels = digit_images()
    chosen = split_digits()[1][:N_IMAGES]
    (folder / "pool").mkdir()
    for place in chosen:
        (folder / "pool" / f"{place}.png").write_bytes(make_png(images[place]))
    write_color_model(folder / "model.onnx")
    classifier = sl.load_classifier(f"onnx:{folder / 'model.onnx'}")
    source = sl.open_source(f"folder:{folder / 'pool'}")
    preds = sl.collect(classifier, source, "identity shift:1,0", execution=sl.Execution(progress=False))
    return Desk(folder, preds, source, classifier, {id_: int(labels[int(id_.split(".")[0])]) for id_ in source.ids})
