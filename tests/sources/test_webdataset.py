"""WebDataset tar files."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import UnreadableImageError, open_source, sharded_files
from tests.sources.conftest import labels_of, png_bytes

IMAGES = np.random.default_rng(4).integers(0, 256, (4, 5, 4, 3), dtype=np.uint8)
PNGS = [png_bytes(image) for image in IMAGES]
Member = tuple[str, bytes]


def tar(*members: Member | tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return content.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_files_of_a_sample_share_their_name_up_to_the_first_dot(tmp_path: Path) -> None:
    content = tar(
        ("./val/a.png", PNGS[0]),
        ("./val/a.cls", b"1\n"),
        ("./val/a.seg.png", PNGS[3]),
        ("./val/a.json", b"{}"),
        ("b.c.cls", b"7"),
        ("0.cls", b"0"),
        ("0.PNG", PNGS[1]),
        ("e.f/x.cls", b" 2"),
        ("e.f/x.jpeg", PNGS[2]),
        ("no-image.cls", b"3"),
        ("._0.png", b"from a Mac"),
        (".hidden/y.png", b"hidden"),
    )
    (tmp_path / "a.tar").write_bytes(content)
    source = open_source(f"webdataset:{tmp_path}/a.tar")
    assert source.ids == ("a.tar/val/a", "a.tar/0", "a.tar/e.f/x")
    assert labels_of(source) == [1, 0, 2]
    np.testing.assert_array_equal([source.read(index) for index in range(3)], IMAGES[:3])


def test_folder_of_tar_files_with_names_of_classes(tmp_path: Path) -> None:
    for name, (first, second) in {"b/2.tar": (2, 3), "1.tar": (0, 1)}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        members = [("x.png", PNGS[first]), ("x.cls", b"dog"), ("y.png", PNGS[second]), ("y.cls", b"cat")]
        (tmp_path / name).write_bytes(tar(*members))
    (tmp_path / "README.md").write_text("about")
    source = open_source(f"webdataset:{tmp_path}")
    assert source.ids == ("1.tar/x", "1.tar/y", "b/2.tar/x", "b/2.tar/y")
    assert source.class_names == ("cat", "dog")
    assert labels_of(source) == [1, 0, 1, 0]
    np.testing.assert_array_equal([source.read(index) for index in range(4)], IMAGES)
    (tmp_path / "classes.txt").write_text("dog\nbird\ncat\n")
    named = open_source(f"webdataset:{tmp_path}?classes={tmp_path}/classes.txt")
    assert labels_of(named) == [0, 2, 0, 2]


def test_suffixes_of_images_and_labels_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar(("x.png", PNGS[0]), ("x.left.png", PNGS[2]), ("x.jpg", PNGS[1]), ("x.class", b"1")))
    with pytest.raises(SourceError, match=r"'x'.*png, jpg"):
        open_source(f"webdataset:{path}")
    for suffix, image in (("png", 0), ("jpg", 1), ("left.png", 2)):
        source = open_source(f"webdataset:{path}?image={suffix}&label=class")
        np.testing.assert_array_equal(source.read(0), IMAGES[image])
        assert labels_of(source) == [1]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_in_every_format(tmp_path: Path, form: int) -> None:
    name = "long/" * 30 + "é" * 10 + "x"
    (tmp_path / "a.tar").write_bytes(tar((f"{name}.png", PNGS[0]), form=form))
    source = open_source(f"webdataset:{tmp_path}/a.tar")
    assert source.ids == (f"a.tar/{name}",)
    assert source.labels is None
    np.testing.assert_array_equal(source.read(0), IMAGES[0])


def test_links_and_devices_are_ignored(tmp_path: Path) -> None:
    links = [
        special("l.png", tarfile.SYMTYPE, "/etc/passwd"),
        special("h.png", tarfile.LNKTYPE, "a.png"),
        special("f.png", tarfile.FIFOTYPE),
        special("d.png", tarfile.DIRTYPE),
    ]
    (tmp_path / "a.tar").write_bytes(tar(*links, ("a.png", PNGS[0])))
    assert open_source(f"webdataset:{tmp_path}/a.tar").ids == ("a.tar/a",)


@pytest.mark.parametrize("size", [1, 511, 700, 1024, 1536, 2049])
def test_tar_file_that_is_cut_is_rejected(tmp_path: Path, size: int) -> None:
    content = tar(("a.png", PNGS[0]), ("b.png", PNGS[1]))
    (tmp_path / "a.tar").write_bytes(content[:size])
    with pytest.raises(SourceError, match=r"a\.tar"):
        open_source(f"webdataset:{tmp_path}/a.tar")


def test_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    content = bytearray(tar(("a.png", PNGS[0]), ("b.png", PNGS[1])))
    content[content.index(b"b.png") + 1] ^= 1
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(SourceError, match="damaged"):
        open_source(f"webdataset:{tmp_path}/a.tar")


def with_size(content: bytes, member: int, size: bytes) -> bytes:
    """Return a tar file with another size in the header at an offset, and the right checksum."""
    header = bytearray(content[member : member + 512])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return content[:member] + bytes(header) + content[member + 512 :]


@pytest.mark.parametrize("size", [b"\xff" * 11 + b"\x00", b"\x80" + b"\x00" * 3 + b"\x7f" * 8, b"77777777777\0"])
def test_sizes_of_members_are_not_trusted(tmp_path: Path, size: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(with_size(tar(("a.png", PNGS[0]), ("b.png", PNGS[1])), 0, size))
    with pytest.raises(SourceError, match=r"a\.tar"):
        open_source(f"webdataset:{tmp_path}/a.tar")


def test_large_headers_and_labels_are_not_read(tmp_path: Path) -> None:
    name = "x" * (sharded_files.MAX_HEADER_BYTES + 1)
    (tmp_path / "a.tar").write_bytes(tar((f"{name}.png", PNGS[0]), form=tarfile.PAX_FORMAT))
    with pytest.raises(SourceError, match=str(sharded_files.MAX_HEADER_BYTES)):
        open_source(f"webdataset:{tmp_path}/a.tar")
    (tmp_path / "a.tar").write_bytes(tar(("a.png", PNGS[0]), ("a.cls", b"1" * 5000)))
    with pytest.raises(SourceError, match="5000"):
        open_source(f"webdataset:{tmp_path}/a.tar")


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
    ],
)
def test_wrong_members(tmp_path: Path, members: list[Member], found: str) -> None:
    (tmp_path / "a.tar").write_bytes(tar(*members))
    with pytest.raises(SourceError, match=found):
        open_source(f"webdataset:{tmp_path}/a.tar")


def test_compressed_and_missing_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(SourceError, match="without compression"):
        open_source(f"webdataset:{tmp_path}/a.tar")
    with pytest.raises(SourceError, match="does not exist"):
        open_source(f"webdataset:{tmp_path}/b.tar")


def test_damaged_images_are_unreadable_and_a_missing_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar(("a.png", b"no image"), ("b.png", PNGS[1]), ("c.png", b"")))
    source = open_source(f"webdataset:{path}", on_error="skip")
    part = pickle.loads(pickle.dumps(source.extract(range(3))))
    assert [len(batch.images) for whole in (source, part) for batch in whole.batches(3)] == [1, 1]
    assert part.skipped == source.skipped
    assert [skipped.id for skipped in source.skipped] == ["a.tar/a", "a.tar/c"]
    path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(SourceError, match="changed"):
        part.read(1)
    path.unlink()
    with pytest.raises(SourceError, match="not there on this machine") as caught:
        list(part.batches(3))
    assert not isinstance(caught.value, UnreadableImageError)


def test_image_above_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(("a.png", bytes(1001))))
    with pytest.raises(UnreadableImageError, match="1001"):
        open_source(f"webdataset:{tmp_path}/a.tar?max_bytes=1000").read(0)


def test_digest_covers_bytes_of_small_files_and_otherwise_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar(("a.png", PNGS[0])))
    first = open_source(f"webdataset:{path}").digest
    path.write_bytes(tar(("a.txt", b"more"), ("a.png", PNGS[0])))
    assert open_source(f"webdataset:{path}").digest == first
    monkeypatch.setattr("secondlook.sources.encoded_sources.MAX_HASHED_BYTES", 100)
    large = open_source(f"webdataset:{path}").digest
    assert open_source(f"webdataset:{path}").digest == large != first
    path.write_bytes(tar(("a.png", PNGS[0]), ("a.txt", b"more")))
    assert open_source(f"webdataset:{path}").digest != large
