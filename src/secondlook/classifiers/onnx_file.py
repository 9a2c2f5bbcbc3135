"""What the protobuf of an ONNX model tells without the onnx package: files of weights, metadata, and the opset."""

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from secondlook.classifiers.classifier import check_regular_file, reject_failures
from secondlook.errors import ClassifierError

Value = int | tuple[int, int]
"""A number, or the (start, end) of bytes in the file."""

VARINT, BYTES = 0, 2
FIXED_SIZES = {1: 8, 5: 4}
UINT32_MAX = 2**32 - 1
MAX_FIELDS = 10_000_000
"""A file of tiny fields would be read for minutes; the largest models have some hundred thousand."""

MAX_DEPTH = 100
"""Nested messages; protobuf itself reads no more."""

MESSAGES: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
}
"""Fields of each kind of message through which a tensor can be reached, and the kind of message they contain."""

MODEL_OPSETS, MODEL_METADATA = 8, 14
TENSOR_EXTERNAL_DATA, TENSOR_DATA_LOCATION = 13, 14
ENTRY_KEY, ENTRY_VALUE = 1, 2
OPSET_DOMAIN, OPSET_VERSION = 1, 2
EXTERNAL = 1
STANDARD_DOMAINS = (b"", b"ai.onnx")

SEAL_METADATA = "secondlook.checksum"
"""Key of the metadata of an exported file that has the hex sha256 of all bytes before it."""


def find_external_data(model: Path, spec: str) -> list[Path]:
    """Return the files beside an ONNX model that contain its weights, sorted by name.

    Each must be a regular file in the folder of the model: a model from elsewhere must not read other files.
    """
    if model.stat().st_size == 0:
        return []
    with _open_model(model, spec) as reader:
        locations: dict[str, bool] = {}
        for location, is_used in reader.iterate_locations("model", *reader.whole):
            locations[location] = locations.get(location, False) or is_used
    files = []
    for location, is_used in sorted(locations.items()):
        file = model.parent / location
        if is_used:
            _check_location(model, location, spec)
        if is_used or (_is_relative(location) and file.is_file()):
            files.append(file)
    return files


def read_onnx_metadata(model: Path, spec: str) -> dict[str, str]:
    """Return the metadata of an ONNX model: texts by key, of several with the same key the last one."""
    check_regular_file(model, repr(spec))
    with _open_model(model, spec) as reader:
        return {key.decode(): value.decode() for key, value in reader.iterate_metadata()}


def read_onnx_opset(model: Path, spec: str) -> int | None:
    """Return the version of ONNX's own operators that a model uses; None if it does not tell."""
    check_regular_file(model, repr(spec))
    with _open_model(model, spec) as reader:
        return next((version for domain, version in reader.iterate_opsets() if domain in STANDARD_DOMAINS), None)


def seal_model(content: bytes) -> bytes:
    """Return a serialized ONNX model with a checksum of all its bytes as the last entry of its metadata."""
    return content + _make_seal(hashlib.sha256(content))


def is_sealed(model: Path) -> bool:
    """Whether a file ends with the checksum of all bytes before it, as `seal_model` adds it."""
    length = len(_make_seal(hashlib.sha256()))
    with model.open("rb") as file:
        left = max(model.stat().st_size - length, 0)
        digest = hashlib.sha256()
        while left and (block := file.read(min(left, 2**20))):
            digest.update(block)
            left -= len(block)
        return file.read(length + 1) == _make_seal(digest)


def _make_seal(digest: "hashlib._Hash") -> bytes:
    """Return a field of `ModelProto` with an entry of metadata; fields may be appended to a serialized message."""
    key, value = SEAL_METADATA.encode(), digest.hexdigest().encode()
    entry = bytes((ENTRY_KEY << 3 | BYTES, len(key))) + key + bytes((ENTRY_VALUE << 3 | BYTES, len(value))) + value
    return bytes((MODEL_METADATA << 3 | BYTES, len(entry))) + entry


@contextmanager
def _open_model(model: Path, spec: str) -> Iterator["_ProtobufReader"]:
    with (
        reject_failures(f"{spec!r} is not an ONNX file", "check or re-export the file."),
        model.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        yield _ProtobufReader(content)


def _check_location(model: Path, location: str, spec: str) -> None:
    # The files of a model in a cache can be links to files that lie beside the file that the model is a link to.
    folders = [model.parent.resolve(), model.resolve().parent]
    file = model.parent / location
    if not _is_relative(location) or not any(file.resolve().is_relative_to(folder) for folder in folders):
        raise ClassifierError(
            f"{spec!r} keeps weights in {location[:300]!r}, which is not in the folder of the model; "
            "save the model with its external data beside it."
        )
    check_regular_file(file, f"external data {location[:300]!r} of {spec!r}")


def _is_relative(location: str) -> bool:
    """Return whether a location stays in its folder on every system: no drive, root, '..' or null character."""
    paths = (PurePosixPath(location), PureWindowsPath(location))
    return bool(location) and "\0" not in location and not any(path.anchor or ".." in path.parts for path in paths)


class _ProtobufReader:
    """Reads some messages of a model; raises ValueError for what protobuf would not read, too."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._n_fields = 0
        self.whole = (0, len(content))

    def iterate_metadata(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of each entry of the model's metadata."""
        for field, value in self._iterate_fields(*self.whole):
            if field == MODEL_METADATA and isinstance(value, tuple):
                yield self._read_entry(*value)

    def iterate_opsets(self) -> Iterator[tuple[bytes, int]]:
        """Yield the domain of each set of operators that the model uses, and its version."""
        for field, value in self._iterate_fields(*self.whole):
            if field == MODEL_OPSETS and isinstance(value, tuple):
                opset = dict(self._iterate_fields(*value))
                domain, version = opset.get(OPSET_DOMAIN, (0, 0)), opset.get(OPSET_VERSION)
                if isinstance(domain, tuple) and isinstance(version, int):
                    yield self._content[slice(*domain)], version

    def iterate_locations(self, kind: str, start: int, end: int, depth: int = 0) -> Iterator[tuple[str, bool]]:
        """Yield the location of each entry of external data in a message, and whether its tensor uses it."""
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} nested messages")
        if kind == "tensor":
            yield from self._read_tensor(start, end)
            return
        for field, value in self._iterate_fields(start, end):
            inner = MESSAGES[kind].get(field)
            if inner is not None and isinstance(value, tuple):
                yield from self.iterate_locations(inner, *value, depth + 1)

    def _read_tensor(self, start: int, end: int) -> Iterator[tuple[str, bool]]:
        locations, is_external = [], False
        for field, value in self._iterate_fields(start, end):
            if field == TENSOR_EXTERNAL_DATA and isinstance(value, tuple):
                key, text = self._read_entry(*value)
                if key == b"location":
                    locations.append(text.decode("utf-8"))
            elif field == TENSOR_DATA_LOCATION and isinstance(value, int):
                is_external |= value & UINT32_MAX == EXTERNAL
        for location in locations:
            yield location, is_external

    def _read_entry(self, start: int, end: int) -> tuple[bytes, bytes]:
        """Return key and value of an entry: they come in any order, and of several, the last one counts."""
        texts = {field: value for field, value in self._iterate_fields(start, end) if isinstance(value, tuple)}
        key, value = (self._content[slice(*texts.get(field, (0, 0)))] for field in (ENTRY_KEY, ENTRY_VALUE))
        return key, value

    def _iterate_fields(self, position: int, end: int) -> Iterator[tuple[int, Value]]:
        """Yield number and value of each field of a message, in the order of the file."""
        while position < end:
            tag, position = self._read_varint(position, end)
            start, value = position, 0
            if tag & 7 == VARINT:
                value, position = self._read_varint(position, end)
            elif tag & 7 == BYTES:
                length, start = self._read_varint(position, end)
                position = start + length
            elif tag & 7 in FIXED_SIZES:
                position += FIXED_SIZES[tag & 7]
            else:
                raise ValueError(f"unknown wire type {tag & 7} at byte {position}")
            self._n_fields += 1
            if position > end or tag > UINT32_MAX or self._n_fields > MAX_FIELDS:
                raise ValueError(f"an invalid field, or one too many, at byte {start}")
            yield tag >> 3, value if tag & 7 == VARINT else (start, position)

    def _read_varint(self, position: int, end: int) -> tuple[int, int]:
        """Return a number of seven bits per byte, and the position after it."""
        value = shift = 0
        while position < end and shift < 70:
            byte = self._content[position]
            value |= (byte & 127) << shift
            position, shift = position + 1, shift + 7
            if byte < 128:
                return value, position
        raise ValueError(f"an unfinished number at byte {position}")
