"""The folder into which rejected images are put for people: one folder per predicted class, and a list of them all."""

import csv
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import DecisionError
from secondlook.files import TEMPORARY_SUFFIX, remove_temporary_files, write_atomically
from secondlook.scoring.review.file_names import safe_name
from secondlook.scoring.review.originals import original_file
from secondlook.scoring.review.review_queue import Doubtful, ReviewQueue
from secondlook.scoring.score_files import written
from secondlook.scoring.score_parts import ScoreParts
from secondlook.sources import Source, parse_spec

REJECTED_LIST = "rejected.csv"


@dataclass(frozen=True)
class RejectedFolder:
    """Copies of the images' files, or links to them; images that are no files become PNG files."""

    path: Path
    source: Source
    link: bool = False

    def check(self, parts: ScoreParts) -> None:
        """Refuse a folder whose images would mix with others: it holds some already, or lies among the new ones."""
        if self.path.exists() and not self.path.is_dir():
            raise DecisionError(f"rejected images cannot be put into {str(self.path)!r}: it is a file; give a folder.")
        if self.path.is_dir() and any(self.path.iterdir()) and not parts.began_to_fill(self.path):
            raise DecisionError(
                f"the folder {str(self.path)!r} for rejected images is not empty, and what is in it would mix with "
                "the new ones; empty it or choose another --rejected."
            )
        if self.source.spec.startswith("folder:"):
            images = parse_spec(self.source.spec).path
            if self.path.resolve().is_relative_to(images.resolve()):
                raise DecisionError(
                    f"the folder {str(self.path)!r} for rejected images lies in {str(images)!r}, whose images are "
                    "scored, and would become part of them; choose another --rejected."
                )

    def path_of(self, image: Doubtful) -> Path:
        """Return where an image is put."""
        original = original_file(self.source, image.position)
        suffix = ".png" if original is None else original.suffix
        stem = image.id if original is None else image.id.removesuffix(suffix)
        folder = safe_name(image.class_name, image.class_name)
        return self.path / folder / f"{safe_name(stem, image.id)}{suffix.lower()}"

    def fill(self, queue: ReviewQueue, parts: ScoreParts, advance: Callable[[int], None]) -> None:
        """Put every image of the queue into its place; what a killed job put there is written again."""
        parts.mark_begun_to_fill(self.path)
        with written("rejected images", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            remove_temporary_files(self.path)
            for image in queue:
                self._put(image)
                advance(1)
            # Each file forced to the disk by itself takes 70 times as long.
            getattr(os, "sync", lambda: None)()
            write_atomically(self.path / REJECTED_LIST, lambda file: self._write_list(queue, file))

    def _put(self, image: Doubtful) -> None:
        target = self.path_of(image)
        target.parent.mkdir(exist_ok=True)
        aside = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
        original = original_file(self.source, image.position)
        if original is None:
            _save_png(self.source.read(image.position), aside)
        elif self.link:
            aside.symlink_to(original)
        else:
            shutil.copyfile(original, aside)
        aside.replace(target)

    def _write_list(self, queue: ReviewQueue, file: BinaryIO) -> None:
        """Write which file is which image, the least sure first."""
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["file", "id", "label", "class", "confidence"])
        for image in queue:
            place = self.path_of(image).relative_to(self.path).as_posix()
            rows.writerow([place, image.id, image.label, image.class_name, image.confidence])
        text.detach()


def _save_png(pixels: Array, path: Path) -> None:
    from PIL import Image

    if pixels.dtype == np.float32:
        pixels = np.rint(pixels * 255).astype(np.uint8)
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path, format="PNG")
