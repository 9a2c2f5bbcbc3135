"""The restricted unpickler."""

import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources.unpickling import parse_names, read_pickled_arrays

ARRAY = np.arange(6, dtype=np.uint8).reshape(2, 3)


class Attack:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, ("echo attacked > attacked",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_and_containers_are_read(tmp_path: Path, protocol: int) -> None:
    value = {
        b"data": ARRAY,
        "more": [1, 2.5, None, True, (b"x", "y")],
        b"float": np.asfortranarray(ARRAY.astype(">f8")),
    }
    (tmp_path / "a").write_bytes(pickle.dumps(value, protocol=protocol))
    content = read_pickled_arrays(tmp_path / "a")
    np.testing.assert_array_equal(content["data"], ARRAY)
    np.testing.assert_array_equal(content["float"], ARRAY.astype(float))
    assert content["more"] == [1, 2.5, None, True, (b"x", "y")]


@pytest.mark.parametrize(
    ("value", "requested"),
    [
        (Attack(), r"(posix|nt)\.system"),
        ([1, {b"deep": Attack()}], r"(posix|nt)\.system"),
        (os.getcwd, r"(posix|nt)\.getcwd"),
        (eval, r"(__builtin__|builtins)\.eval"),
        (OrderedDict(), r"collections\.OrderedDict"),
        ({b"a": np.array([Attack()], dtype=object)}, r"an array of dtype 'O8'"),
        ({b"a": np.array([1, None], dtype=object)}, r"an array of dtype 'O8'"),
        ({b"a": np.float64(1)}, r"numpy\._?core\.multiarray\.scalar"),
        ({b"a": np.zeros(2, dtype="f8,i4")}, r"an array of dtype 'V12'"),
        ({b"a": np.array(["x"])}, r"an array of dtype 'U1'"),
    ],
)
def test_anything_else_is_rejected_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object, requested: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(pickle.dumps(value, protocol=2))
    with pytest.raises(SourceError, match=rf"/a' .* {requested}"):
        read_pickled_arrays(tmp_path / "a")
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    "call",
    [
        b"c_codecs\nencode\n(X\x02\x00\x00\x00hiX\x03\x00\x00\x00bz2tR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(K\x00tX\x01\x00\x00\x00btR.",
    ],
)
def test_allowed_names_with_other_arguments_are_rejected(tmp_path: Path, call: bytes) -> None:
    (tmp_path / "a").write_bytes(b"\x80\x02" + call)
    with pytest.raises(SourceError, match=re.escape(repr(str(tmp_path / "a")))):
        read_pickled_arrays(tmp_path / "a")


@pytest.mark.parametrize(
    "content", [b"", b"hello", pickle.dumps({b"a": ARRAY}, protocol=2)[:-20], b"\x80\x02}q\x00h\x07."]
)
def test_damaged_pickle_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(SourceError, match=re.escape(repr(str(tmp_path / "a")))):
        read_pickled_arrays(tmp_path / "a")


def test_forged_array_is_rejected(tmp_path: Path) -> None:
    content = pickle.dumps({b"data": ARRAY}, protocol=3)
    assert content.count(b"K\x02K\x03\x86") == 1
    (tmp_path / "a").write_bytes(content.replace(b"K\x02K\x03\x86", b"K\x09K\x03\x86"))
    with pytest.raises(SourceError, match="cannot reshape array of size 6"):
        read_pickled_arrays(tmp_path / "a")


def test_other_content_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(SourceError, match="list"):
        read_pickled_arrays(tmp_path / "a")
    assert parse_names([b"cat", "dog"], "the names") == ("cat", "dog")
    with pytest.raises(SourceError, match="the names"):
        parse_names([1], "the names")
