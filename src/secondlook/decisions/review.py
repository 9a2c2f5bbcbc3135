"""Human review of images: the review queue, the folder of rejected images, and exports to labeling tools."""

import base64
import hashlib
import io
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np

from secondlook.arrays import Array, as_pixels
from secondlook.decisions.chunks import ScoreChunks
from secondlook.decisions.formats import REPLACE, check_folder, check_output_path, translate_write_errors
from secondlook.errors import ANY, DecisionError, Repair
from secondlook.files import TEMPORARY_SUFFIX, write_atomically, write_bytes_atomically
from secondlook.progress import Advance
from secondlook.registry import NamedRecord, Registry
from secondlook.sources import Source
from secondlook.specs import parse_spec
from secondlook.tables import format_csv_row

if TYPE_CHECKING:
    import pyarrow as pa

LOCAL_FILES = "/data/local-files/?d="
"""Address of a file below the document root of a Label Studio server, which is `/` by default."""

MAX_NAME_LENGTH = 60
CONFIG_SUFFIX = "-config.xml"


class Answer(IntEnum):
    """Statements of a reviewer about an image instead of a class; negative numbers, since classes count from 0."""

    NONE_OF_THESE = -1
    """The image shows none of the classes (unknown image). Its prediction is wrong."""
    CANNOT_TELL = -2
    """The reviewer does not know. Statistics treat the image as not reviewed: the worse case is assumed."""
    BAD_IMAGE = -3
    """The image is unusable, for example black or blurred. Its prediction is wrong, but it is not an unknown image."""

    @property
    def text(self) -> str:
        """The answer as text for exports and pages, like `none of these`."""
        return self.name.lower().replace("_", " ")

    @classmethod
    def find(cls, text: str) -> "Answer | None":
        """Return the answer with this text, ignoring case; None if there is none."""
        return next((one for one in cls if one.text == text.strip().lower()), None)

    @classmethod
    def list_offered(cls, class_names: Iterable[str]) -> "tuple[Answer, ...]":
        """Return the answers offered beside the classes, without answers that are also the name of a class."""
        taken = set(map(cls.find, class_names))
        return tuple(one for one in cls if one not in taken)


@dataclass(frozen=True)
class Review:
    """Outputs of `score` for human review: a folder of rejected images, and files for labeling tools.

    Attributes
    ----------
    rejected, link
        A folder for rejected images, sorted by predicted class, and whether to link the files instead of copying them.
    exports, export_all, image_prefix
        Files for labeling tools, like 'label-studio:tasks.json'; whether they include accepted images; and a URL prefix
        for the ids of images.
    """

    rejected: str | Path | None = None
    link: bool = False
    exports: Sequence[str] = ()
    export_all: bool = False
    image_prefix: str | None = None

    LIST: ClassVar = "rejected.csv"
    """Name of the list of images in the folder of rejected images."""


class ReviewImage(NamedTuple):
    """One image of the review queue, with its prediction."""

    position: int
    """Position in the source."""
    id: str
    label: int
    class_name: str
    class_folder: str
    """Name of the folder for the images of its class."""
    confidence: float
    interval: tuple[float, float] | None
    accept: bool


@dataclass(frozen=True, eq=False)
class ReviewQueue:
    """Images in the order of review, least confident first. Holds few numbers per image; ids come from the source."""

    rows: "pa.Table"
    ids: Sequence[str]
    class_names: tuple[str, ...]

    @classmethod
    def from_rows(
        cls, tables: Iterable["pa.Table"], ids: Sequence[str], class_names: tuple[str, ...], *, include_accepted: bool
    ) -> "ReviewQueue":
        """Return the rejected and the audited images of a scoring job, or all images.

        `tables` are the rows of all images, in order. Images that could not be read are left out.
        """
        import pyarrow as pa

        parts, start = [], 0
        for table in tables:
            is_due = include_accepted | ~table["accept"].to_numpy()
            if "audit" in table.column_names:
                is_due |= table["audit"].to_numpy()
            selected = np.flatnonzero(table["reason"].is_null().to_numpy() & is_due)
            chosen = table.select(["label", "confidence", "low", "high", "accept"]).take(selected)
            parts.append(chosen.append_column("position", pa.array(start + selected)))
            start += len(table)
        order = [("confidence", "ascending"), ("position", "ascending")]
        return cls(pa.concat_tables(parts).sort_by(order), ids, class_names)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ReviewImage]:
        folders = name_class_folders(self.class_names)
        # Convert only some of them to Python values at a time.
        for row in itertools.chain.from_iterable(batch.to_pylist() for batch in self.rows.to_batches(4096)):
            place, label = row["position"], row["label"]
            yield ReviewImage(
                place,
                self.ids[place],
                label,
                self.class_names[label],
                folders[label],
                row["confidence"],
                # Both ends are missing, or neither.
                None if row["low"] is None else (row["low"], row["high"]),
                row["accept"],
            )


@dataclass(frozen=True)
class ImageLocations:
    """Locations of images for reviewers and tools: the folder of rejected images, the original files, or URLs.

    The folder has copies of the files, or links to them; other images are saved as PNG files.
    """

    source: Source
    review: Review

    @property
    def folder(self) -> Path | None:
        """The folder of rejected images, or None."""
        return None if self.review.rejected is None else Path(self.review.rejected)

    def check_folder(self, chunks: ScoreChunks) -> None:
        """Raise an error for a folder that is not writable or has other files."""
        if self.folder is None:
            return
        where, path = f"cannot put rejected images into {str(self.folder)!r}", self.folder.absolute()
        check_folder(next(place for place in (path, *path.parents) if os.path.lexists(place)), where)
        with translate_write_errors("rejected images", self.folder):
            is_filled = path.is_dir() and any(path.iterdir()) and not chunks.has_rejected_mark(path)
        if is_filled:
            raise DecisionError(f"{where}: it is not empty; empty it or choose another folder.")
        if self.source.spec.startswith("folder:"):
            images = parse_spec(self.source.spec).path
            if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(images)):
                raise DecisionError(f"{where}: it is inside {str(images)!r}, which is scored; choose another folder.")

    def fill_folder(self, queue: ReviewQueue, chunks: ScoreChunks, advance: Advance) -> None:
        """Store every image of the queue in the folder; images from an interrupted job are written again."""
        assert self.folder is not None, "the caller checked that there is a folder"
        with translate_write_errors("rejected images", self.folder):
            chunks.write_rejected_mark(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            for image in queue:
                self._add(image)
                advance(1)
            # One sync of the file system; syncing every file takes 70 times as long.
            getattr(os, "sync", lambda: None)()
            rows = itertools.chain([("file", "id", "label", "class", "confidence")], map(self._make_row, queue))
            lines = (format_csv_row(row).encode() for row in rows)
            write_atomically(self.folder / Review.LIST, lambda file: file.writelines(lines), clean=True)

    def path_of(self, image: ReviewImage) -> Path:
        """Return the absolute path of an image."""
        return self.source.find_path(image.position) or self._find_copy(image).absolute()

    def url_of(self, image: ReviewImage) -> str:
        """Return the URL of an image."""
        if self.review.image_prefix is not None:
            return self.review.image_prefix + quote(image.id)
        return LOCAL_FILES + quote(self.path_of(image).as_posix().lstrip("/"))

    def _find_copy(self, image: ReviewImage) -> Path:
        """Return the path of an image in the folder of rejected images."""
        assert self.folder is not None, "check_images was called before the job started"
        original = self.source.find_path(image.position)
        suffix = ".png" if original is None else original.suffix
        stem = image.id if original is None else image.id.removesuffix(suffix)
        return self.folder / image.class_folder / f"{make_file_name(stem, image.id)}{suffix.lower()}"

    def _make_row(self, image: ReviewImage) -> tuple[object, ...]:
        path = self._find_copy(image).relative_to(self.folder or "").as_posix()
        return path, image.id, image.label, image.class_name, image.confidence

    def _add(self, image: ReviewImage) -> None:
        target = self._find_copy(image)
        target.parent.mkdir(exist_ok=True)
        # A resumed job overwrites the temporary files of a killed one.
        temporary = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
        temporary.unlink(missing_ok=True)
        original = self.source.find_path(image.position)
        if original is None:
            temporary.write_bytes(encode_png(self.source.read(image.position)))
        elif self.review.link:
            temporary.symlink_to(original)
        else:
            shutil.copyfile(original, temporary)
        temporary.replace(target)


WriteQueue = Callable[[Path, ReviewQueue, ImageLocations], None]
"""Writes the images of a queue to a file, atomically."""


@dataclass(frozen=True)
class Export(NamedRecord):
    """A file format of a labeling tool; its name is the scheme of `SCHEME:FILE`."""

    write: WriteQueue
    reads_files: bool
    """Whether the tool needs images that are files on its own disk."""
    companions: tuple[str, ...] = ()
    """Suffixes of additional files: for `tasks.json`, `-config.xml` means `tasks-config.xml`."""

    @property
    def form(self) -> str:
        """The syntax of the export, with a placeholder for the file."""
        return f"{self.name}:FILE"


EXPORTS: Registry[Export] = Registry("export", DecisionError)
"""Every export by its scheme."""


@dataclass(frozen=True)
class ExportFile:
    """An export and the file it is written to."""

    export: Export
    path: Path

    def __str__(self) -> str:
        return f"{self.export.name}:{self.path}"

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that are written."""
        return (self.path, *(self.path.with_name(f"{self.path.stem}{ending}") for ending in self.export.companions))

    @classmethod
    def parse(cls, text: str) -> "ExportFile":
        """Parse `SCHEME:FILE`, and check that the file can be written."""
        scheme, _, location = text.partition(":")
        if scheme in EXPORTS and not location:
            raise DecisionError(f"the export {text!r} has no file; expected {EXPORTS[scheme].form}.")
        if ":" not in text:
            forms = ", ".join(export.form for export in EXPORTS.values())
            raise DecisionError(f"the export {text!r} has no scheme; expected one of: {forms}.")
        spec = parse_spec(text, DecisionError)
        export = EXPORTS.find(spec.scheme, where=f" in {text!r}")
        if spec.options:
            option = next(iter(spec.options))
            raise DecisionError(f"unknown option {option!r} in {text!r}; expected {export.form} without options.")
        file = cls(export, spec.path)
        for path in file.paths:
            check_output_path(path, f"the export {text!r}")
        return file

    def check_new(self, scores: str) -> None:
        """Raise an error if a file exists but the scores do not, since it belongs to other scores."""
        for path in self.paths:
            if path.exists():
                fault = f"{str(path)!r} exists, but the scores {scores!r} do not, so it is an export of other scores"
                raise DecisionError(fault, repair=REPLACE)

    def check_images(self, locations: ImageLocations) -> None:
        """Raise an error, before the job starts, if the tool needs files but the images are not files."""
        source, review = locations.source, locations.review
        needs_files = self.export.reads_files or review.image_prefix is None
        is_saved = review.rejected is not None and not review.export_all
        if not needs_files or is_saved or source.find_path(0) is not None:
            return
        repair = Repair("pass {rejected} with a folder, where they are saved as PNG files", rejected=ANY)
        if review.rejected is not None:
            repair = Repair("pass {export_all}, since only rejected images are saved as files", export_all=False)
        fault = f"the export {str(self)!r} needs image files, but the images of {source.spec!r} are not files"
        raise DecisionError(fault, repair=repair)

    def write(self, queue: ReviewQueue, locations: ImageLocations) -> None:
        """Write the file."""
        with translate_write_errors(f"the export {self.export.name!r}", self.path):
            self.export.write(self.path, queue, locations)


class LabelStudio:
    """The files of Label Studio: a JSON list of tasks, and the labeling interface next to it."""

    @staticmethod
    def write(path: Path, queue: ReviewQueue, locations: ImageLocations) -> None:
        """Write the images of a queue as tasks, and the labeling interface."""
        tasks = (LabelStudio.make_task(image, locations.url_of(image)) for image in queue)
        LabelStudio._write_tasks(path, tasks, queue.class_names)

    @staticmethod
    def write_blind(path: Path, images: Iterable[ReviewImage], source: Source, class_names: tuple[str, ...]) -> None:
        """Write images as tasks without predictions; images without a separate file are embedded in the tasks."""
        locations = ImageLocations(source, Review())

        def make_task(image: ReviewImage) -> dict[str, object]:
            if source.find_path(image.position) is not None:
                url = locations.url_of(image)
            else:
                url = f"data:image/png;base64,{base64.b64encode(encode_png(source.read(image.position))).decode()}"
            return LabelStudio.make_task(image, url) | {"predictions": []}

        LabelStudio._write_tasks(path, map(make_task, images), class_names)

    @staticmethod
    def _write_tasks(path: Path, tasks: Iterable[dict[str, object]], class_names: tuple[str, ...]) -> None:
        config = LabelStudio.format_interface(class_names).encode()
        write_bytes_atomically(path.with_name(f"{path.stem}{CONFIG_SUFFIX}"), config)
        write_atomically(path, lambda file: file.writelines(LabelStudio.format_tasks(tasks)), clean=True)

    @staticmethod
    def format_interface(class_names: tuple[str, ...]) -> str:
        """Return the labeling interface: one image, and a single choice among the classes and the offered answers."""
        layout = ' layout="select"' if len(class_names) > 20 else ""  # a drop-down list instead of buttons
        texts = (*class_names, *(answer.text for answer in Answer.list_offered(class_names)))
        choices = "\n".join(f"    <Choice value={quoteattr(text)}/>" for text in texts)
        return (
            '<View>\n  <Image name="image" value="$image"/>\n'
            f'  <Choices name="class" toName="image" choice="single"{layout}>\n{choices}\n  </Choices>\n</View>\n'
        )

    @staticmethod
    def format_tasks(tasks: Iterable[dict[str, object]]) -> Iterator[bytes]:
        """Yield the content of a file of tasks, task by task."""
        yield b"["
        for number, task in enumerate(tasks):
            yield f"{',' if number else ''}\n{json.dumps(task, ensure_ascii=False)}".encode()
        yield b"\n]\n"

    @staticmethod
    def make_task(image: ReviewImage, url: str) -> dict[str, object]:
        """Return an image as a task, with the prediction as a pre-annotation."""
        low, high = image.interval or (None, None)
        result = [LabelStudio.make_choice(image.class_name)]
        prediction: dict[str, object] = {"model_version": "secondlook", "result": result}
        # Label Studio rejects scores outside [0, 1], but can sort by the confidence in the data.
        if 0 <= image.confidence <= 1:
            prediction["score"] = image.confidence
        about = {"id": image.id, "confidence": image.confidence, "low": low, "high": high, "accept": image.accept}
        return {"data": {"image": url, **about}, "predictions": [prediction]}

    @staticmethod
    def make_choice(class_name: str) -> dict[str, object]:
        """Return the choice of a class in the labeling interface."""
        return {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [class_name]}}


def _write_fiftyone(path: Path, queue: ReviewQueue, locations: ImageLocations) -> None:
    """Write the labels file of a FiftyOneImageClassificationDataset, with the absolute paths of the images."""

    def format_lines() -> Iterator[bytes]:
        yield f'{{"classes": {json.dumps(queue.class_names, ensure_ascii=False)},\n"labels": {{'.encode()
        for number, image in enumerate(queue):
            low, high = image.interval or (None, None)
            # Fields that FiftyOne does not define go into attributes; "id" is reserved.
            attributes = {"low": low, "high": high, "accept": image.accept, "source_id": image.id}
            label = {"label": image.label, "confidence": image.confidence, "attributes": attributes}
            entry = [json.dumps(value, ensure_ascii=False) for value in (str(locations.path_of(image)), label)]
            yield f"{',' if number else ''}\n{': '.join(entry)}".encode()
        yield b"\n}}\n"

    write_atomically(path, lambda file: file.writelines(format_lines()), clean=True)


_FIFTYONE = "labels of a FiftyOneImageClassificationDataset, with confidence and interval"
EXPORTS.add(Export("fiftyone", _FIFTYONE, write=_write_fiftyone, reads_files=True))
_TASKS = "tasks with pre-annotations, and FILE-config.xml with the labeling interface"
EXPORTS.add(Export("label-studio", _TASKS, LabelStudio.write, reads_files=False, companions=(CONFIG_SUFFIX,)))


def name_class_folders(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return a unique folder name for each class, different from the name of the list of rejected images."""
    used = {Review.LIST: ""}
    for label, name in enumerate(class_names):
        identity = name
        # Two classes may have the same name.
        while (folder := make_file_name(name, identity)).lower() in used:
            identity = f"{identity} {label}"
        used[folder.lower()] = folder
    return tuple(used.values())[1:]


def make_file_name(name: str, identity: str) -> str:
    """Return a file name that is valid on common file systems and unique per identity.

    A short identity of lowercase letters, digits and `_.-` keeps its name. Otherwise a digest of the identity is
    appended to a readable form of the name, since some file systems ignore case. The same applies to a name that
    already ends in a digest.
    """
    is_plain = re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*", identity) and not identity.endswith(".")
    # Windows reserves device names, with any suffix.
    is_special = re.match(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", identity) or re.search("-[0-9a-f]{32}$", name)
    if is_plain and len(identity) <= MAX_NAME_LENGTH and not is_special:
        return name
    readable = re.sub(r"[^\w-]+", "_", name).strip("_-")[:MAX_NAME_LENGTH]
    return f"{readable or 'x'}-{hashlib.sha256(identity.encode(errors='surrogatepass')).hexdigest()[:32]}"


def encode_png(image: Array) -> bytes:
    """Return an image as a PNG file. uint8|float32 [H, W, 1 or 3]"""
    from PIL import Image

    pixels = as_pixels(image)
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")
    return file.getvalue()
