"""Digests of what data is, so that changed data is never taken for the same."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np

from secondlook.arrays import Array, IntArray


def digest_of_source(
    ids: Sequence[str], labels: IntArray | None, class_names: tuple[str, ...] | None, contents: Iterable[bytes]
) -> str:
    """Return sha256 (hex) over the class names and every image's id, label and content, in order."""
    total = hashlib.sha256(json.dumps(class_names).encode())
    known_labels: Iterable[int | None] = repeat(None, len(ids)) if labels is None else labels.tolist()
    for id_, label, content in zip(ids, known_labels, contents, strict=True):
        # A line of JSON cannot run into the next one, so no two lists of images share their text.
        total.update(f"\n{json.dumps([id_, label, content.hex()])}".encode())
    return total.hexdigest()


def digest_of_pixels(image: Array) -> bytes:
    """Return the sha256 of an array: its dtype, its shape and its values."""
    pixels = np.ascontiguousarray(image)
    total = hashlib.sha256(f"{pixels.dtype.str} {pixels.shape} ".encode())
    total.update(pixels.data)
    return total.digest()


def digest_of_file(path: Path) -> bytes:
    """Return the sha256 of a file's bytes; a file that cannot be opened has its own digest: that of the reason."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        return hashlib.sha256(f"unreadable: {error.strerror}".encode()).digest()


def digest_of_file_status(path: Path) -> bytes:
    """Return the sha256 of a file's size and time of change, for where reading every byte would take too long."""
    try:
        status = path.stat()
    except OSError as error:
        return hashlib.sha256(f"unreadable: {error.strerror}".encode()).digest()
    return hashlib.sha256(f"size {status.st_size} changed {status.st_mtime_ns}".encode()).digest()
