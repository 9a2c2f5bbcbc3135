"""The folder of a run: how it came about, its predictions, and what came of them; no model is needed to read it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Preprocessing
from secondlook.errors import PredictionsError, SourceError
from secondlook.files import describe_invalid, write_atomically
from secondlook.predictions import PredictFrom, Predictions, ensemble_key, entry_key
from secondlook.selective import PolicyClassifier, describe_classifier
from secondlook.sources import Source, open_source

RECORD = "run.json"
SETTINGS = "run.toml"
PREDICTIONS = "predictions"
EVALUATION = "evaluation.json"
REPORT = "report.html"


class DataOfRun(BaseModel):
    """Which images were looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec: str
    digest: str
    images: int
    class_names: tuple[str, ...] | None


class RunRecord(BaseModel):
    """What a run was about; no times, so that the same run gives the same bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["secondlook run"] = "secondlook run"
    version: Literal[1] = 1
    secondlook: str
    settings: dict[str, Any]
    classifier: PolicyClassifier
    data: DataOfRun
    views: tuple[str, ...]
    predictions: str
    """The name of its predictions among those in the folder, which may hold those of earlier evaluations."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run that is on disk."""

    path: Path
    record: RunRecord

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open what `secondlook evaluate --out` wrote."""
        try:
            return cls(path, RunRecord.model_validate_json((path / RECORD).read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            found = "nothing is there" if not path.exists() else f"it has no {RECORD}"
            raise PredictionsError(
                f"{str(path)!r} is not the folder of a run: {found}; make one with secondlook evaluate --out."
            ) from None
        except OSError as error:
            raise PredictionsError(
                f"the run {str(path / RECORD)!r} cannot be read: {error.strerror}; allow reading it, or run secondlook "
                "evaluate again."
            ) from None
        except ValidationError as error:
            raise PredictionsError(
                f"the run {str(path / RECORD)!r} is damaged, {describe_invalid(error)}; run secondlook evaluate again."
            ) from None

    @property
    def predict_from(self) -> PredictFrom:
        """What the run took the class from."""
        predict_from: PredictFrom = self.record.settings.get("predict_from", "image")
        return predict_from

    @property
    def top_k(self) -> int:
        """How many leading classes counted as the answer in the run."""
        return int(self.record.settings.get("top_k", 1))

    @property
    def command(self) -> str:
        """The command that makes the same run again."""
        return shlex.join(["secondlook", "evaluate", "--config", str(self.path / SETTINGS)])

    @cached_property
    def predictions(self) -> Predictions:
        """What the classifier answered, read lazily."""
        return Predictions.open(self.path / PREDICTIONS, run=self.record.predictions, views=list(self.record.views))

    @cached_property
    def source(self) -> Source:
        """The images, if they are still what they were."""
        source = open_source(self.record.data.spec)
        if source.digest != self.record.data.digest:
            raise SourceError(
                f"the images of {self.record.data.spec!r} have changed since the run {str(self.path)!r}; "
                "put them back, or evaluate again."
            )
        return source

    def fitted_image(self, position: int) -> Array:
        """Return one image of the predictions as the classifier saw it. uint8 [H, W, C]"""
        preprocessing = Preprocessing.from_dict(self.record.classifier.preprocessing)
        index = self._index_of[self.predictions.ids[position]]
        image: Array = preprocessing.fit([self.source.read(index)])[0]
        return image

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.source.ids)}


def record_of(
    settings: dict[str, Any], classifier: Classifier, source: Source, views: tuple[str, ...], warnings: tuple[str, ...]
) -> RunRecord:
    """Return the record of a run."""
    import secondlook

    return RunRecord(
        secondlook=secondlook.__version__,
        settings=settings,
        classifier=describe_classifier(classifier),
        data=DataOfRun(spec=source.spec, digest=source.digest, images=len(source), class_names=source.class_names),
        views=views,
        predictions=_name_of_predictions(classifier, source),
        warnings=warnings,
    )


def _name_of_predictions(classifier: Classifier, source: Source) -> str:
    if not classifier.members:
        return entry_key(classifier, source)
    return ensemble_key(tuple(entry_key(member, source) for member in classifier.members))


def write_run(path: Path, record: RunRecord, evaluation: dict[str, object]) -> Run:
    """Write what a run is about and what came out; the predictions are in its folder already."""
    files = {
        SETTINGS: toml_text("evaluate", record.settings),
        EVALUATION: json.dumps(evaluation, indent=2, ensure_ascii=False) + "\n",
        RECORD: record.model_dump_json(indent=2) + "\n",
    }
    for name, text in files.items():
        _write(path / name, text.encode())
    return Run(path, record)


def toml_text(command: str, settings: Mapping[str, Any]) -> str:
    """Return settings as a file that `--config` takes."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    return "\n".join([f"[{command}]", *lines, ""])


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))
