"""Manifests of a store: which classifier, data and views an entry holds, validated whenever they are read."""

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import Field, ValidationError, model_validator

import secondlook
from secondlook.arrays import Output
from secondlook.classifiers import Classifier
from secondlook.errors import PredictionsError
from secondlook.files import (
    Count,
    FrozenRecord,
    PositiveCount,
    SealedRecord,
    describe_invalid,
    write_bytes_atomically,
)
from secondlook.sources import Source
from secondlook.views import ViewSet

FORMAT_VERSION: Literal[1] = 1
ENTRY_FILE = "manifest.json"
ENSEMBLE_FILE = "ensemble.json"


EntryName = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
"""The name of an entry, and of its folder: a digest, and so never the path of another folder."""


class ClassifierRecord(FrozenRecord):
    """The classifier, and how images become its input."""

    name: str
    digest: str
    output: Output
    preprocessing: dict[str, object]

    @classmethod
    def describe(cls, classifier: "Classifier | ClassifierRecord") -> "ClassifierRecord":
        """Return the record of a classifier."""
        if isinstance(classifier, ClassifierRecord):
            return classifier
        return cls(
            name=classifier.name,
            digest=classifier.digest,
            output=classifier.output,
            preprocessing=classifier.preprocessing.to_dict(),
        )


class Origin(NamedTuple):
    """Where predictions come from."""

    classifier: ClassifierRecord
    data: str
    """Spec of the images."""
    digest: str
    """Digest of the images."""
    versions: Mapping[str, str]
    """Versions of the packages that the outputs were collected with."""

    @classmethod
    def describe(cls, classifier: Classifier, source: Source) -> "Origin":
        """Return where the predictions of a classifier for a source come from, collected now."""
        return cls(ClassifierRecord.describe(classifier), source.spec, source.digest, _package_versions())


class DataRecord(FrozenRecord):
    """The images; the spec includes the subset, its fraction and the random seed."""

    spec: str
    digest: str
    images: PositiveCount
    labeled: bool
    class_names: tuple[str, ...] | None


class SkippedImage(FrozenRecord):
    """An image that could not be read, and the reason."""

    index: Count
    id: str
    reason: str


class Manifest(SealedRecord):
    """One entry: a classifier, its data and the views collected so far.

    It holds no timestamps, so that collecting the same outputs again writes the same bytes.
    """

    version: Literal[1] = FORMAT_VERSION
    classifier: ClassifierRecord
    data: DataRecord
    views: tuple[str, ...]
    rows_per_chunk: PositiveCount
    classes: PositiveCount | None = None
    skipped: tuple[SkippedImage, ...] = ()
    versions: dict[str, str]

    @model_validator(mode="after")
    def _check_skipped(self) -> Self:
        skipped = {image.index for image in self.skipped}
        if max(skipped, default=0) >= self.data.images:
            raise ValueError(f"skipped image {max(skipped)} is not among the {self.data.images} images")
        if len(skipped) == self.data.images:
            raise ValueError(f"all of the {self.data.images} images were skipped")
        return self

    @classmethod
    def create(cls, classifier: Classifier, source: Source, views: ViewSet, rows_per_chunk: int) -> Self:
        """Return the manifest of a new entry."""
        return cls(
            classifier=ClassifierRecord.describe(classifier),
            data=DataRecord(
                spec=source.spec,
                digest=source.digest,
                images=len(source),
                labeled=source.labels is not None,
                class_names=source.class_names,
            ),
            views=views.texts,
            rows_per_chunk=rows_per_chunk,
            versions=_package_versions(),
        )

    def with_views(self, views: tuple[str, ...]) -> Self:
        """Return the manifest with new views appended to those it has."""
        new = tuple(view for view in views if view not in self.views)
        return self.model_copy(update={"views": self.views + new})


class EnsembleManifest(SealedRecord):
    """An ensemble: the entry names of its members, in order."""

    version: Literal[1] = FORMAT_VERSION
    members: tuple[EntryName, ...] = Field(min_length=1)


def _package_versions() -> dict[str, str]:
    return {
        "secondlook": secondlook.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": version("pyarrow"),
    }


def entry_key(classifier: Classifier, source: Source) -> str:
    """Return the name of an entry: a digest of the classifier, its preprocessing and output, and the data.

    That of an ensemble is a digest of the names of its members' entries.
    """
    if classifier.members:
        return _digest(["ensemble", *(entry_key(member, source) for member in classifier.members), FORMAT_VERSION])
    return _digest(
        [classifier.digest, classifier.output, classifier.preprocessing.to_dict(), source.digest, FORMAT_VERSION]
    )


def view_key(view: str) -> str:
    """Return the folder name of a view, a digest because its text may contain characters that paths do not allow."""
    return _digest(["view", view])


def _digest(values: list[object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


AnyManifest = TypeVar("AnyManifest", Manifest, EnsembleManifest)


def write_manifest(path: Path, manifest: Manifest | EnsembleManifest) -> None:
    """Write a manifest atomically; a file with the same content is left alone."""
    content = manifest.model_dump_json(indent=2).encode() + b"\n"
    if not path.is_file() or path.read_bytes() != content:
        write_bytes_atomically(path, content)


def read_manifest(path: Path, kind: type[AnyManifest]) -> AnyManifest:
    """Read and validate a manifest."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = describe_invalid(error) if isinstance(error, ValidationError) else str(error)
        raise PredictionsError(
            f"the manifest {str(path)!r} is invalid ({reason}); delete its folder and collect again, "
            "or open the store with the version of secondlook that wrote it."
        ) from None
