"""Many images in each file: columns of Parquet files, and WebDataset tar files."""

import pickle
import platform
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, Features, Image

from secondlook.errors import SourceError
from secondlook.file_systems import Location
from secondlook.sources import UnreadableImageError, open_source, sharded_files
from tests.sources.conftest import labels_of, png_bytes, random_images, read_all, write_parquet, write_tar

IMAGES = random_images(7, 5, 4)
PNGS = [png_bytes(image) for image in IMAGES]
Member = tuple[str, bytes]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_column_of_bytes(tmp_path: Path, kind: Any) -> None:
    source = open_source(write_parquet(tmp_path / "a.parquet", picture=pa.array(PNGS, kind), size=list(range(7))))
    assert source.ids == tuple(f"a.parquet#{row}" for row in range(7))
    assert source.labels is None
    np.testing.assert_array_equal(read_all(source), IMAGES)


def test_files_of_hugging_face_have_class_names(tmp_path: Path) -> None:
    features = Features({"image": Image(), "thumbnail": Image(), "label": ClassLabel(names=["dog", "bird", "cat"])})
    cells = [{"bytes": png, "path": f"{number}.png"} for number, png in enumerate(PNGS)]
    data = Dataset.from_dict({"image": cells, "thumbnail": cells, "label": [2, 0, 0, 2, 2, 0, 2]}, features=features)
    data.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="image, thumbnail"):
        open_source(f"parquet:{tmp_path}/a.parquet")
    source = open_source(f"parquet:{tmp_path}/a.parquet?image=image")
    by_datasets = open_source(data.remove_columns("thumbnail"))
    assert source.class_names == by_datasets.class_names == ("dog", "bird", "cat")
    np.testing.assert_array_equal(source.labels, by_datasets.labels)
    np.testing.assert_array_equal(read_all(source), read_all(by_datasets))


@pytest.mark.parametrize("scheme", ["parquet", "webdataset"])
def test_folder_of_files_with_ids_and_names_of_classes(tmp_path: Path, scheme: str) -> None:
    suffix = {"parquet": "parquet", "webdataset": "tar"}[scheme]
    names, kinds = list("abcdxyz"), ["dog", "dog", "cat", "ant", "cat", "dog", "cat"]
    for place, rows in ((f"b/2.{suffix}", slice(4, 7)), (f"1.{suffix}", slice(4))):
        if scheme == "parquet":
            write_parquet(tmp_path / place, image=PNGS[rows], name=names[rows], species=kinds[rows])
        else:
            cells = zip(names[rows], PNGS[rows], kinds[rows], strict=True)
            members = ([(f"{name}.png", png), (f"{name}.cls", kind.encode())] for name, png, kind in cells)
            write_tar(tmp_path / place, *(member for pair in members for member in pair))
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "classes.txt").write_text("dog\nbird\ncat\nant\n")
    options = "?id=name&label=species" if scheme == "parquet" else ""
    source = open_source(f"{scheme}:{tmp_path}{options}")
    in_tar = ("1.tar/a", "1.tar/b", "1.tar/c", "1.tar/d", "b/2.tar/x", "b/2.tar/y", "b/2.tar/z")
    assert source.ids == (tuple("abcdxyz") if scheme == "parquet" else in_tar)
    assert source.class_names == ("ant", "cat", "dog")
    assert labels_of(source) == [2, 2, 1, 0, 1, 2, 1]
    np.testing.assert_array_equal(read_all(source), IMAGES)
    named = open_source(f"{scheme}:{tmp_path}{options}{'&' if options else '?'}classes={tmp_path}/classes.txt")
    assert labels_of(named) == [0, 0, 2, 3, 2, 0, 2]
    if scheme == "parquet":
        assert open_source(f"parquet:{tmp_path}").ids[3:5] == ("1.parquet#3", "b/2.parquet#0")


def test_labels_may_be_hidden_or_in_a_dictionary_and_cells_without_bytes(tmp_path: Path) -> None:
    assert open_source(write_parquet(tmp_path / "a.parquet", image=PNGS, label=[-1] * 7)).labels is None
    names = pa.array(["b", "a", "b", "b", "a", "a", "b"]).dictionary_encode()
    assert open_source(write_parquet(tmp_path / "b.parquet", image=PNGS, labels=names)).class_names == ("a", "b")
    struct = pa.array([{"bytes": PNGS[0], "path": "x"}, {"bytes": None, "path": "y"}, None])
    source = open_source(write_parquet(tmp_path / "c.parquet", image=struct))
    np.testing.assert_array_equal(source.read(0), IMAGES[0])
    for index in (1, 2):
        with pytest.raises(UnreadableImageError, match="empty"):
            source.read(index)


@pytest.mark.parametrize(
    ("columns", "options", "found"),
    [
        ({}, "?image=picture", "picture"),
        ({}, "?label=lable", "lable"),
        ({}, "?id=name", "name"),
        ({"label": [0, 1, None, 0, 0, 0, 0]}, "", "row 2 of 'a.parquet'"),
        ({"label": [0.5] * 7}, "", "double"),
        ({"label": [0] * 7}, "?image=label", "int64"),
        ({"label": [0, 0, 0, -1, 0, 0, 0]}, "", "label -1 of image 3"),
        ({"name": ["a", "b", "a", "c", "d", "e", "f"]}, "?id=name", "duplicate id 'a'"),
        ({"other": [b"x"] * 7}, "", "image, other"),
        ({"image": pa.array([], pa.binary())}, "", "no images"),
    ],
)
def test_wrong_columns(tmp_path: Path, columns: dict[str, Any], options: str, found: str) -> None:
    spec = write_parquet(tmp_path / "a.parquet", **({"image": PNGS} | columns))
    with pytest.raises(SourceError, match=found):
        open_source(spec + options)


@pytest.mark.parametrize(("scheme", "suffix"), [("parquet", "parquet"), ("webdataset", "tar")])
def test_missing_damaged_compressed_and_differing_files(tmp_path: Path, scheme: str, suffix: str) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        open_source(f"{scheme}:{tmp_path}/none.{suffix}")
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(SourceError, match=rf"a\.{suffix}.*(Parquet|without compression)"):
        open_source(f"{scheme}:{tmp_path}/a.{suffix}")
    write_parquet(tmp_path / "a.parquet", image=PNGS, label=[0] * 7)
    cases: list[tuple[Any, str]] = [({}, r"b\.parquet.*'label'"), ({"label": ["a"] * 7}, "integers in some")]
    for columns, found in cases:
        write_parquet(tmp_path / "b.parquet", image=PNGS, **columns)
        with pytest.raises(SourceError, match=found):
            open_source(f"parquet:{tmp_path}")


@pytest.mark.parametrize("scheme", ["parquet", "webdataset"])
def test_damaged_images_are_unreadable_and_another_or_missing_file_is_an_error(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "a"
    contents: list[bytes | None] = [PNGS[0], b"no image", None if scheme == "parquet" else b"", PNGS[3]]
    spec = (
        write_parquet(path, image=contents)
        if scheme == "parquet"
        else write_tar(path, *((f"{number}.png", content or b"") for number, content in enumerate(contents)))
    )
    source = open_source(spec, on_error="skip")
    part = pickle.dumps(source.extract(range(1, 4)))
    received = pickle.loads(part)
    for whole, n_images in ((source, 2), (received, 1)):
        assert sum(len(batch.images) for batch in whole.batches(4)) == n_images
        assert [skipped.id for skipped in whole.skipped] == [source.ids[1], source.ids[2]]
    assert received.skipped == source.skipped
    path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(SourceError, match="changed"):
        list(pickle.loads(part).batches(3))
    path.unlink()
    with pytest.raises(SourceError, match=re.escape(platform.node())) as caught:
        list(pickle.loads(part).batches(3))
    assert not isinstance(caught.value, UnreadableImageError)


@pytest.mark.parametrize("is_kept", [True, False])
def test_row_groups_are_read_when_needed_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    if not is_kept:
        monkeypatch.setattr(sharded_files, "MAX_CACHED_BYTES", 0)
        monkeypatch.setattr(sharded_files, "MIN_ROW_GROUPS", 1)
    source = open_source(write_parquet(tmp_path / "a.parquet", image=PNGS))
    large = open_source(write_parquet(tmp_path / "b.parquet", image=PNGS * 20, row_group_size=7))
    with patch.object(Location, "open", autospec=True, side_effect=Location.open) as opened:
        counts = []
        for index in (1, 0, 2, 6, 5, 1):
            source.read(index)
            counts.append(opened.call_count)
        assert counts == ([1, 1, 1, 2, 3, 3] if is_kept else [1, 1, 1, 2, 3, 4])
        opened.reset_mock()
        large.threads = 8
        assert sum(len(batch.images) for batch in large.batches(50)) == 140
        assert opened.call_count == 20 or not is_kept


@pytest.mark.parametrize("scheme", ["webdataset", "parquet"])
def test_shards_of_a_bucket_are_opened_once(scheme: str, samples: Callable[[str], str]) -> None:
    source = open_source(samples(f"{scheme} in a bucket"))
    with patch.object(Location, "open", autospec=True, side_effect=Location.open) as opened:
        assert sum(len(batch.images) for batch in source.batches(2)) == 7
    n_shards, n_row_groups = 3, 4
    assert opened.call_count == {"webdataset": n_shards, "parquet": n_row_groups}[scheme]


@pytest.mark.parametrize("scheme", ["parquet", "webdataset"])
def test_digest_covers_the_bytes_of_images_and_not_their_places(tmp_path: Path, scheme: str) -> None:
    def digest(images: list[bytes], *, moved: bool = False) -> str:
        if scheme == "parquet":
            return open_source(write_parquet(tmp_path / "a", 2 if moved else 3, image=images)).digest
        members = [(f"{number}.png", image) for number, image in enumerate(images)]
        return open_source(write_tar(tmp_path / "a", *[("a.txt", b"more")][: int(moved)], *members)).digest

    assert digest(PNGS) == digest(PNGS, moved=True) != digest([*PNGS[:6], PNGS[0]])


def test_image_or_row_group_above_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_tar(tmp_path / "a.tar", ("a.png", bytes(1001)))
    with pytest.raises(UnreadableImageError, match="1001"):
        open_source(f"{spec}?max_bytes=1000").read(0)
    source = open_source(write_parquet(tmp_path / "a.parquet", image=PNGS))
    monkeypatch.setattr(sharded_files, "MAX_LOADED_BYTES", 100)
    with pytest.raises(SourceError, match=r"row group 0 .*100"):
        source.read(0)
    monkeypatch.setattr(sharded_files, "MAX_LOADED_ROWS", 6)
    with pytest.raises(SourceError, match="7 rows"):
        open_source(f"parquet:{tmp_path}/a.parquet")


def test_files_of_a_sample_share_their_name_up_to_the_first_dot(tmp_path: Path) -> None:
    first = [("./val/a.png", PNGS[0]), ("./val/a.cls", b"1\n"), ("./val/a.seg.png", PNGS[3]), ("./val/a.json", b"{}")]
    others = [("b.c.cls", b"7"), ("0.cls", b"0"), ("0.PNG", PNGS[1]), ("e.f/x.cls", b" 2"), ("e.f/x.jpeg", PNGS[2])]
    ignored = [("no-image.cls", b"3"), ("._0.png", b"from a Mac"), (".hidden/y.png", b"hidden")]
    source = open_source(write_tar(tmp_path / "a.tar", *first, *others, *ignored))
    assert source.ids == ("a.tar/val/a", "a.tar/0", "a.tar/e.f/x")
    assert labels_of(source) == [1, 0, 2]
    np.testing.assert_array_equal(read_all(source), IMAGES[:3])
    several = [("x.png", PNGS[0]), ("x.left.png", PNGS[2]), ("x.jpg", PNGS[1]), ("x.class", b"1")]
    spec = write_tar(tmp_path / "b.tar", *several)
    with pytest.raises(SourceError, match=r"'x'.*png, jpg"):
        open_source(spec)
    for suffix, image in (("png", 0), ("jpg", 1), ("left.png", 2)):
        source = open_source(f"{spec}?image={suffix}&label=class")
        np.testing.assert_array_equal(source.read(0), IMAGES[image])
        assert labels_of(source) == [1]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_are_read_and_links_and_devices_ignored(tmp_path: Path, form: int) -> None:
    name = "long/" * 30 + "é" * 10 + "x"
    links = []
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
        links.append(tarfile.TarInfo(f"{kind.decode()}.png"))
        links[-1].type, links[-1].linkname = kind, "a.png"
    source = open_source(write_tar(tmp_path / "a.tar", *links, (f"{name}.png", PNGS[0]), form=form))
    assert (source.ids, source.labels) == ((f"a.tar/{name}",), None)
    np.testing.assert_array_equal(source.read(0), IMAGES[0])


def with_size(content: bytes, size: bytes) -> bytes:
    """Return a tar file with another size in its first header, and the right checksum."""
    header = bytearray(content[:512])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + content[512:]


@pytest.mark.parametrize(
    "change",
    [
        *(lambda content, size=size: content[:size] for size in (1, 511, 700, 1024, 1536, 2049)),
        lambda content: with_size(content, b"\xff" * 11 + b"\x00"),
        lambda content: with_size(content, b"\x80" + b"\x00" * 3 + b"\x7f" * 8),
        lambda content: with_size(content, b"77777777777\0"),
        lambda content: content.replace(b"b.png", b"c.png"),  # a damaged header, which is not the end
    ],
)
def test_damaged_tar_file_is_rejected(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.tar"
    spec = write_tar(path, ("a.png", PNGS[0]), ("b.png", PNGS[1]))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SourceError, match=r"a\.tar.*damaged" if b"c.png" in path.read_bytes() else r"a\.tar"):
        open_source(spec)


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([("a.png", b""), ("b.png", b""), ("a.cls", b"0")], "a.tar/b"),
        ([("a.png", b""), ("a.cls", b"0"), ("b.png", b""), ("b.cls", b"cat")], "mix"),
        ([("a.png", b""), ("a.cls", b"-1")], "a.tar/a"),
        ([("a.png", b""), ("a.png", b"")], "duplicate"),
        ([("a.png", b""), ("a.cls", b"1"), ("a.cls", b"1")], "duplicate"),
        ([("a.png", b""), ("a.cls", b"\xff")], "utf-8"),
        ([("a.txt", b"")], "no images"),
        ([("a.png", b""), ("a.cls", b"1" * 5000)], "5000"),
        ([("x" * (sharded_files.MAX_HEADER_BYTES + 1) + ".png", b"")], str(sharded_files.MAX_HEADER_BYTES)),
    ],
)
def test_wrong_members(tmp_path: Path, members: list[Member], found: str) -> None:
    spec = write_tar(tmp_path / "a.tar", *members, form=tarfile.PAX_FORMAT)
    with pytest.raises(SourceError, match=found):
        open_source(spec)
