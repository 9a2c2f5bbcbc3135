"""Digests: what a classifier is, as a hex sha256 under which its answers may be kept."""

import hashlib
import json
import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from secondlook.errors import ClassifierError

if TYPE_CHECKING:
    import torch


def existing_file(path: str, spec: str) -> Path:
    """Return the path of a file that is there."""
    file = Path(path)
    if not file.is_file():
        raise ClassifierError(f"{spec!r} names the file {path!r}, which does not exist; check the path.")
    return file


def digest_of_files(files: Iterable[Path]) -> str:
    """Hex sha256 of one file as any tool gives it; of several, the sha256 of theirs."""
    digests = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else digest_of(*digests)


def digest_of(*parts: object) -> str:
    """Hex sha256 of a few values that JSON can hold."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def digest_with(digest: str, **options: object) -> str:
    """Return the digest, changed by whatever options are not None: they make it a different classifier."""
    given = {name: value for name, value in options.items() if value is not None}
    return digest_of(digest, given) if given else digest


def external_data_files(model: Path) -> list[Path]:
    """Files beside an ONNX model that hold its weights, in order of name.

    The model names them in protobuf pairs ("location", path), whose bytes are searched for: reading the whole model
    structure would need the onnx package and the memory for all weights.
    """
    key = b"\x0a\x08location\x12"
    if model.stat().st_size == 0:
        return []
    names = set()
    with model.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = content.find(key)
        while position >= 0:
            names.add(_text_at(content, position + len(key)))
            position = content.find(key, position + len(key))
    return [model.parent / name for name in sorted(names) if (model.parent / name).is_file()]


def _text_at(content: mmap.mmap, position: int) -> str:
    """Text with its length before it as a protobuf varint."""
    length, shift = 0, 0
    while content[position] >= 128:
        length |= (content[position] & 127) << shift
        position, shift = position + 1, shift + 7
    length |= content[position] << shift
    return content[position + 1 : position + 1 + length].decode("utf-8", errors="replace").replace("\0", "")


def digest_of_module(module: "torch.nn.Module") -> str:
    """Hex sha256 of a torch module: its class and parts, and the name, shape, type and bytes of every weight.

    The parts as torch prints them tell strides and activations, which no weight does.
    """
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}".encode())
    digest.update(re.sub(r" at 0x[0-9a-f]+", "", repr(module)).encode())
    for piece in _pieces_of_state(module):
        digest.update(piece)
    return digest.hexdigest()


def _pieces_of_state(module: "torch.nn.Module") -> Iterator[bytes | memoryview]:
    import torch

    for name, value in module.state_dict().items():
        if isinstance(value, torch.Tensor):
            yield f"{name} {tuple(value.shape)} {value.dtype}".encode()
            # Viewing the bytes works for every type, bfloat16 included, which numpy does not know.
            yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        else:
            yield f"{name} {value!r}".encode()
