"""Review of images by people: the review queue, the files of its images, and the folder of rejected images."""

import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import quote

import numpy as np

from secondlook.arrays import Array, as_pixels
from secondlook.decisions.chunks import ScoreChunks
from secondlook.decisions.formats import open_text, translate_write_errors
from secondlook.errors import ANY, DecisionError, Repair
from secondlook.files import TEMPORARY_SUFFIX, write_atomically
from secondlook.sources import Source
from secondlook.specs import parse_spec
from secondlook.tables import format_csv_row

if TYPE_CHECKING:
    import pyarrow as pa

QUEUE_COLUMNS = ("label", "confidence", "low", "high", "accept", "reason")

REJECTED_LIST = "rejected.csv"

LOCAL_FILES = "/data/local-files/?d="
"""Address of a file below the document root of a Label Studio server, which is `/` by default."""

MAX_NAME_LENGTH = 60

DIGEST_AT_END = re.compile("-[0-9a-f]{12}$")

WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
"""Names that Windows reserves, with any suffix."""


class ReviewImage(NamedTuple):
    """One image of the review queue, with its prediction."""

    position: int
    """Its position in the source."""
    id: str
    label: int
    class_name: str
    class_folder: str
    """Name of a folder for the images of its class only."""
    confidence: float
    interval: tuple[float, float] | None
    accept: bool


@dataclass(frozen=True, eq=False)
class ReviewQueue:
    """Images in the order of review, least confident first. Holds a few numbers per image; ids belong to the source."""

    columns: dict[str, Array]
    ids: Sequence[str]
    class_names: tuple[str, ...]

    @classmethod
    def from_rows(
        cls, tables: Iterable["pa.Table"], ids: Sequence[str], class_names: tuple[str, ...], *, include_accepted: bool
    ) -> "ReviewQueue":
        """Return the rejected images of a scoring job and those to be audited, or all of them.

        `tables` are the rows of all images, in order. Images that could not be read are left out.
        """
        names = [name for name in QUEUE_COLUMNS if name != "reason"]
        columns: dict[str, list[Any]] = {"position": [], **{name: [] for name in names}}
        start = 0
        for table in tables:
            is_read = table["reason"].is_null().to_numpy()
            is_due = ~table["accept"].to_numpy()
            if "audit" in table.column_names:
                is_due = is_due | table["audit"].to_numpy()
            selected = np.flatnonzero(is_read & (include_accepted | is_due))
            columns["position"].append(start + selected)
            for name in names:
                columns[name].append(table[name].take(selected).to_numpy())
            start += len(table)
        joined = {name: np.concatenate(values) for name, values in columns.items()}
        order = np.lexsort((joined["position"], joined["confidence"]))
        return cls({name: values[order] for name, values in joined.items()}, ids, class_names)

    def __len__(self) -> int:
        return len(self.columns["position"])

    def __iter__(self) -> Iterator[ReviewImage]:
        folders = name_class_folders(self.class_names)
        for position, label, confidence, low, high, accept in zip(*self.columns.values(), strict=True):
            yield ReviewImage(
                int(position),
                self.ids[int(position)],
                int(label),
                self.class_names[int(label)],
                folders[int(label)],
                float(confidence),
                # A missing end is NaN in the array; either both ends are missing or none.
                None if np.isnan(low) else (float(low), float(high)),
                bool(accept),
            )


@dataclass(frozen=True)
class RejectedFolder:
    """Copies of the files of rejected images, or links to them; images that are not files are saved as PNG files."""

    path: Path
    source: Source
    link: bool = False

    def check(self, chunks: ScoreChunks) -> None:
        """Raise an error for a folder that cannot be written, or whose images would mix with others."""
        where = f"cannot put rejected images into {str(self.path)!r}"
        path = self.path.absolute()
        existing = next(place for place in (path, *path.parents) if os.path.lexists(place))
        if not existing.is_dir():
            raise DecisionError(f"{where}: {str(existing)!r} is not a folder; pass a folder.")
        if not os.access(existing, os.W_OK):
            raise DecisionError(f"{where}: no permission to write in {str(existing)!r}; choose another folder.")
        with translate_write_errors("rejected images", self.path):
            is_filled = self.path.is_dir() and any(self.path.iterdir()) and not chunks.has_rejected_mark(self.path)
        if is_filled:
            raise DecisionError(
                f"{where}: it is not empty, and its files would mix with them; empty it or choose another folder."
            )
        if self.source.spec.startswith("folder:"):
            images = parse_spec(self.source.spec).path
            if Path(os.path.realpath(self.path)).is_relative_to(os.path.realpath(images)):
                raise DecisionError(
                    f"{where}: it is inside {str(images)!r}, whose images are scored; choose another folder."
                )

    def path_of(self, image: ReviewImage) -> Path:
        """Return the path of an image in this folder."""
        original = self.source.find_path(image.position)
        suffix = ".png" if original is None else original.suffix
        stem = image.id if original is None else image.id.removesuffix(suffix)
        return self.path / image.class_folder / f"{make_file_name(stem, image.id)}{suffix.lower()}"

    def fill(self, queue: ReviewQueue, chunks: ScoreChunks, advance: Callable[[int], None]) -> None:
        """Put every image of the queue into the folder; images from an interrupted job are written again."""
        used: set[str] = set()
        with translate_write_errors("rejected images", self.path):
            chunks.write_rejected_mark(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            for image in queue:
                self._check_file_is_free(image, used)
                self._add(image)
                advance(1)
            # One sync of the file system; a sync of every file takes 70 times as long.
            getattr(os, "sync", lambda: None)()
            write_atomically(self.path / REJECTED_LIST, lambda file: self._write_list(queue, file), clean=True)

    def _check_file_is_free(self, image: ReviewImage, used: set[str]) -> None:
        """Raise an error if an id is made to look like the file name of another, which has a digest at its end."""
        path = self.path_of(image)
        name = f"{image.label}/{path.name}".lower()
        if name in used:
            raise DecisionError(
                f"the rejected image {image.id!r} would replace another one at {str(path)!r}; rename it."
            )
        if DIGEST_AT_END.search(path.stem):
            used.add(name)

    def _add(self, image: ReviewImage) -> None:
        target = self.path_of(image)
        target.parent.mkdir(exist_ok=True)
        # A resumed job writes every image again, and so replaces what a killed one left under this name.
        temporary = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
        temporary.unlink(missing_ok=True)
        original = self.source.find_path(image.position)
        if original is None:
            temporary.write_bytes(encode_png(self.source.read(image.position)))
        elif self.link:
            temporary.symlink_to(original)
        else:
            shutil.copyfile(original, temporary)
        temporary.replace(target)

    def _write_list(self, queue: ReviewQueue, file: BinaryIO) -> None:
        """Write the file, id, class and confidence of each image, least confident first."""
        with open_text(file) as text:
            text.write(format_csv_row(("file", "id", "label", "class", "confidence")))
            for image in queue:
                path = self.path_of(image).relative_to(self.path).as_posix()
                text.write(format_csv_row((path, image.id, image.label, image.class_name, image.confidence)))


@dataclass(frozen=True)
class ImageLocations:
    """Where other tools find images: their own files, PNG files in the folder of rejected images, or URLs."""

    source: Source
    rejected: RejectedFolder | None = None
    prefix: str | None = None
    """Put before the id of an image to make its URL."""

    def check_files(self, export: str, *, include_accepted: bool) -> None:
        """Raise an error if the images of an export are not files."""
        if self.source.find_path(0) is not None or (self.rejected is not None and not include_accepted):
            return
        repair = Repair("pass {rejected} with a folder, where they are saved as PNG files", rejected=ANY)
        if self.rejected is not None:
            repair = Repair("pass {export_all}, since only rejected images are saved as files", export_all=False)
        raise DecisionError(
            f"the export {export!r} needs images that are files, but those of {self.source.spec!r} are not",
            repair=repair,
        )

    def path_of(self, image: ReviewImage) -> Path:
        """Return the absolute path of an image."""
        original = self.source.find_path(image.position)
        if original is not None:
            return original
        assert self.rejected is not None, "check_files was called before the job started"
        return self.rejected.path_of(image).absolute()

    def url_of(self, image: ReviewImage) -> str:
        """Return the URL of an image."""
        if self.prefix is not None:
            return self.prefix + quote(image.id)
        return LOCAL_FILES + quote(self.path_of(image).as_posix().lstrip("/"))


def name_class_folders(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return a folder name for each class, different from all others and from the list of rejected images."""
    used = {REJECTED_LIST: ""}
    for label, name in enumerate(class_names):
        identity = name
        # Two classes may have the same name, or one that is made to look like the folder of another.
        while (folder := make_file_name(name, identity)).lower() in used:
            identity = f"{identity} {label}"
        used[folder.lower()] = folder
    return tuple(used.values())[1:]


def make_file_name(name: str, identity: str) -> str:
    """Return a file name that is valid on common file systems and different for every identity.

    The name is used as it is if the identity is a short text of lowercase letters, digits and `_.-`; otherwise a
    readable form of it gets a digest of the identity, since some file systems ignore case.
    """
    is_plain = re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*", identity) and not identity.endswith(".")
    if is_plain and len(identity) <= MAX_NAME_LENGTH and not WINDOWS_DEVICE.match(identity):
        return name
    readable = re.sub(r"[^\w-]+", "_", name).strip("_-")[:MAX_NAME_LENGTH]
    return f"{readable or 'x'}-{hashlib.sha256(identity.encode(errors='surrogatepass')).hexdigest()[:12]}"


def encode_png(image: Array) -> bytes:
    """Return an image as a PNG file. uint8|float32 [H, W, 1 or 3]"""
    from PIL import Image

    pixels = as_pixels(image)
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")
    return file.getvalue()
