"""The manifest of a run: how its predictions came about, validated whenever it is read."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from secondlook.arrays import Output
from secondlook.errors import PredictionsError
from secondlook.files import describe_invalid, write_atomically

if TYPE_CHECKING:
    from secondlook.classifiers import Classifier
    from secondlook.predictions.flow import CollectJob
    from secondlook.sources import Source

FORMAT_VERSION: Literal[1] = 1
RUN_FILE = "manifest.json"
ENSEMBLE_FILE = "ensemble.json"


class Record(BaseModel):
    """A value of a manifest: nothing missing, nothing unknown, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClassifierRecord(Record):
    """Which classifier answered, and how images became its input."""

    name: str
    digest: str
    output: Output
    preprocessing: dict[str, object]


class DataRecord(Record):
    """Which images were looked at; the spec also holds the part, the fraction and the seed that chose them."""

    spec: str
    digest: str
    images: int = Field(gt=0)
    labelled: bool
    class_names: tuple[str, ...] | None


class SkippedImage(Record):
    """An image that could not be read, and why."""

    index: int
    id: str
    reason: str


class Manifest(Record):
    """One run: a classifier, its data, the views asked for so far. No times: the same run gives the same bytes."""

    version: Literal[1] = FORMAT_VERSION
    classifier: ClassifierRecord
    data: DataRecord
    views: tuple[str, ...]
    rows_per_part: int = Field(gt=0)
    classes: int | None = None
    skipped: tuple[SkippedImage, ...] = ()
    versions: dict[str, str]

    @model_validator(mode="after")
    def _skipped_images_exist(self) -> Self:
        for image in self.skipped:
            if not 0 <= image.index < self.data.images:
                raise ValueError(f"skipped image {image.index} is not among the {self.data.images} images")
        return self

    def with_views(self, views: tuple[str, ...]) -> Self:
        """Return the manifest with views added behind those it has."""
        new = tuple(view for view in views if view not in self.views)
        return self.model_copy(update={"views": self.views + new})


class EnsembleManifest(Record):
    """An ensemble: the names of its members' runs, in order."""

    version: Literal[1] = FORMAT_VERSION
    members: tuple[str, ...] = Field(min_length=1)


def manifest_of(job: CollectJob) -> Manifest:
    """Return the manifest of a run that begins."""
    classifier, source = job.classifier, job.source
    return Manifest(
        classifier=ClassifierRecord(
            name=classifier.name,
            digest=classifier.digest,
            output=classifier.output,
            preprocessing=classifier.preprocessing.to_dict(),
        ),
        data=DataRecord(
            spec=source.spec,
            digest=source.digest,
            images=len(source),
            labelled=source.labels is not None,
            class_names=source.class_names,
        ),
        views=job.views.texts,
        rows_per_part=job.division.rows,
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    import pyarrow

    import secondlook

    return {
        "secondlook": secondlook.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pyarrow.__version__,
    }


def entry_key(classifier: Classifier, source: Source) -> str:
    """Return the name of a run: equal only where classifier, preprocessing, output and data are."""
    return _digest(
        [classifier.digest, classifier.output, classifier.preprocessing.to_dict(), source.digest, FORMAT_VERSION]
    )


def ensemble_key(members: tuple[str, ...]) -> str:
    """Return the name of an ensemble, made from the names of its members' runs."""
    return _digest(["ensemble", *members, FORMAT_VERSION])


def view_name(view: str) -> str:
    """Return the name of a view's folder: its text may hold what a file system does not allow."""
    return _digest(["view", view])


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


AnyManifest = TypeVar("AnyManifest", Manifest, EnsembleManifest)


def write_manifest(path: Path, manifest: Manifest | EnsembleManifest) -> None:
    """Write a manifest whole, unless the file already says the same."""
    text = manifest.model_dump_json(indent=2).encode() + b"\n"
    if not path.is_file() or path.read_bytes() != text:
        write_atomically(path, lambda file: file.write(text))


def read_manifest(path: Path, kind: type[AnyManifest]) -> AnyManifest:
    """Read and validate a manifest."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = describe_invalid(error) if isinstance(error, ValidationError) else str(error)
        raise PredictionsError(
            f"the manifest {str(path)!r} cannot be used ({why}); remove its folder and collect again, "
            "or open the store with the version of secondlook that wrote it."
        ) from None
