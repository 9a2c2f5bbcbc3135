"""Files behind URLs (s3://, gs://, abfs://, hdfs://, file://) and local paths, read and written through pyarrow."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from secondlook.errors import SecondLookError
from secondlook.files import write_bytes_atomically
from secondlook.registry import did_you_mean
from secondlook.specs import expand_path, split_options

URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
USER_IN_URL = re.compile(r"[^/@:]*:(?!\d+(/|$))[^@]*@", re.DOTALL)
"""A user and a password before the host. A password may contain slashes; a colon may also precede a port."""
SECRET_OPTION = re.compile(r"[?&][^=&]*(key|secret|token|password|credential|signature)[^=&]*=", re.IGNORECASE)

SERVER_ERROR = re.compile(r"AWS Error|google::cloud|Azure|hdfs|curl", re.IGNORECASE)
AWS_VARIABLES = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

LOCATION_OPTIONS = ("endpoint", "region", "anonymous")
"""A custom server (s3:// and gs://), the region of a bucket (s3://), and 'true' for no credentials (both)."""

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 10.0
ATTEMPTS = 3
"""These limits report a missing server within seconds, and tolerate a single lost request."""


class FileEntry(NamedTuple):
    """A file of a location: name relative to the location, size in bytes, and modification time."""

    name: str
    size: int
    mtime_ns: int


def is_url(text: str) -> bool:
    """Whether a text is a URL such as 's3://bucket/folder'; a Windows path, with a one-letter drive, is not."""
    return URL.fullmatch(text) is not None


def reject_credentials(text: str, error: type[SecondLookError]) -> None:
    """Raise for a URL with credentials, also within a text; the message does not repeat them."""
    match = URL.search(text)
    scheme, rest = (match["scheme"].lower(), match["rest"]) if match else ("", "")
    if USER_IN_URL.match(rest) or SECRET_OPTION.search(rest) or (scheme == "s3" and "@" in rest.partition("/")[0]):
        places = f"environment variables ({AWS_VARIABLES} for s3://), a configuration file or the role of the machine"
        raise error(f"the {scheme}:// URL contains credentials", repair=f"remove them, and pass them in {places}")


def open_location(location: str, error: type[SecondLookError], options: Mapping[str, str] | None = None) -> "Location":
    """Return the folder, file or prefix of a local path, or of any URL that pyarrow supports, without reading it.

    `error` is the class of all errors. Options are in the URL (?region=eu-west-1) or in `options`; names in `options`
    that are not in `LOCATION_OPTIONS` are ignored.
    """
    if not is_url(location):
        path = os.path.abspath(expand_path(location))  # noqa: PTH100 - links must not be resolved
        return Location(location, error, path=Path(path).as_posix())
    reject_credentials(location, error)
    url, given = split_options(location, error)
    given |= {name: value for name, value in (options or {}).items() if name in LOCATION_OPTIONS}
    reject_credentials(given.get("endpoint", ""), error)
    anonymous = given.get("anonymous", "false").lower()
    if anonymous not in ("true", "false"):
        raise error(f"?anonymous={given['anonymous']} of {url!r}; expected 'true' or 'false'.")
    opened = Location(url, error, given.get("endpoint"), given.get("region"), anonymous == "true")
    allowed = {"s3": LOCATION_OPTIONS, "gs": ("endpoint", "anonymous")}.get(opened.scheme, ())
    for name in given:
        if name not in LOCATION_OPTIONS:
            suggestion = did_you_mean(name, LOCATION_OPTIONS)
            raise error(f"unknown option {name!r} of {url!r}; known: {', '.join(LOCATION_OPTIONS)}.{suggestion}")
        if name not in allowed and getattr(opened, name):
            raise error(f"option {name!r} does not apply to {url!r}; omit it.")
    if not allowed:
        with opened.translate_errors():
            return replace(opened, path=_open_uri(url)[1])
    path = unquote(url.partition("://")[2]).rstrip("/")
    if not path or path.startswith("/"):
        raise error(f"{url!r} has no bucket; expected {opened.scheme}://BUCKET/FOLDER.")
    return replace(opened, path=path)


@dataclass(frozen=True)
class Location:
    """A folder of files behind a URL, or a local one; can be pickled for other processes and machines.

    The file system is opened on first use in each process, with credentials from the environment or the machine's role.
    All its failures are raised as `error`, from the exception of pyarrow.
    """

    url: str
    """The URL, or the local path as given."""
    error: type[SecondLookError]
    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    path: str = ""
    """Path in the file system: 'bucket/prefix', or an absolute path."""

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """The scheme of the URL in lower case; 'file' for local paths."""
        match = URL.fullmatch(self.url)
        return match["scheme"].lower() if match else "file"

    @property
    def local_path(self) -> Path | None:
        """The path of local files; None for files elsewhere."""
        return Path(self.path) if self.scheme == "file" else None

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "Location":
        """The folder that contains the location."""
        url = self.url.rstrip("/").rpartition("/")[0] if is_url(self.url) else str(Path(self.url).parent)
        return replace(self, url=url, path=self.path.rpartition("/")[0])

    def list_files(self) -> list[FileEntry]:
        """Return all files in the folder and its subfolders, sorted by name, without hidden files and folders.

        A folder or prefix that does not exist is empty; a bucket that does not exist is an error.
        """
        if self.local_path is not None:
            with self.translate_errors():
                return sorted(_walk_files(self.local_path)) if self.local_path.is_dir() else []
        files = [info for info in self._list(recursive=True) if info.is_file]
        bucket = self.path.partition("/")[0]
        if not files and bucket and not replace(self, path=bucket).exists():
            repair = "create it, or correct the URL or its ?endpoint="
            raise self.error(f"there is no bucket {bucket!r} ({self.url})", repair=repair)
        start = len(self.path.rstrip("/")) + 1
        entries = (FileEntry(info.path[start:], info.size, info.mtime_ns or 0) for info in files)
        return sorted(entry for entry in entries if not _is_hidden(entry.name))

    def list_names(self) -> list[str]:
        """Return the names of the files of `list_files`."""
        return [file.name for file in self.list_files()]

    def list_folders(self) -> list[str]:
        """Return the names of the subfolders, sorted, without hidden ones."""
        if self.local_path is not None:
            with self.translate_errors():
                return _list_folders(self.local_path, (self.local_path.resolve(),))
        folders = (info.base_name for info in self._list(recursive=False) if info.type.name == "Directory")
        return sorted(name for name in folders if not _is_hidden(name))

    def locate(self, name: str) -> str:
        """Return the URL or the path of a file."""
        return f"{self.url.rstrip('/')}/{name}"

    def find(self, name: str = "") -> FileEntry | None:
        """Return the file of a name, or the location itself if it is a file; None if there is no file."""
        with self.translate_errors():
            info = self._file_system.get_file_info(self._join(name))
        return FileEntry(name, info.size, info.mtime_ns or 0) if info.is_file else None

    def exists(self) -> bool:
        """Whether the folder or file exists; a prefix of a bucket exists if there are files below it."""
        with self.translate_errors():
            return bool(self._file_system.get_file_info(self.path).type.name != "NotFound")

    def open(self, name: str) -> Any:
        """Open a file for random access: a `pyarrow.NativeFile`, which several threads may read."""
        with self.translate_errors(name):
            return self._file_system.open_input_file(self._join(name))

    def read_bytes(self, name: str) -> bytes:
        """Read a file."""
        with self.open(name) as file, self.translate_errors(name):
            return bytes(file.read())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        with self.translate_errors(name):
            if self.local_path is not None:
                path = self.local_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes_atomically(path, content)
                return
            if self.path.startswith("/"):  # a file system with folders, such as HDFS, rather than a bucket
                self._file_system.create_dir(self._join(name).rpartition("/")[0], recursive=True)
            # Objects appear in a bucket once their upload is complete.
            with self._file_system.open_output_stream(self._join(name), compression=None) as file:
                file.write(content)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with self.translate_errors(name), suppress(FileNotFoundError):
            self._file_system.delete_file(self._join(name))

    @contextmanager
    def translate_errors(self, name: str = "", *, only_server: bool = False) -> Iterator[None]:
        """Raise failures of the file system as `error`; with `only_server`, errors of parsers are not translated."""
        from pyarrow import ArrowException

        try:
            yield
        except (OSError, ArrowException) as problem:
            if only_server and not (isinstance(problem, OSError) and SERVER_ERROR.search(str(problem))):
                raise
            where = self.locate(name) if name else self.url
            raise self.error(f"{where!r} {_explain(problem, self)}") from problem

    @cached_property
    def _file_system(self) -> Any:
        with self.translate_errors():
            if self.scheme == "s3":
                default = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
                return _open_s3(self.path.partition("/")[0], self.endpoint or default, self.region, self.anonymous)
            if self.scheme == "gs":
                return _open_gcs(self.endpoint, self.anonymous)
            return _open_uri("file:///" if self.scheme == "file" else self.url)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def _join(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}" if name else self.path

    def _list(self, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        with self.translate_errors():
            selector = FileSelector(self.path, allow_not_found=True, recursive=recursive)
            return list(self._file_system.get_file_info(selector))


def _walk_files(folder: Path, parents: tuple[Path, ...] = (), prefix: str = "") -> Iterator[FileEntry]:
    """Yield the regular files below a folder; follows links, except to parents (unlike pyarrow)."""
    parents = (*parents, folder.resolve())
    for entry in _scan(folder):
        if entry.is_file():
            status = entry.stat()
            yield FileEntry(f"{prefix}{entry.name}", status.st_size, status.st_mtime_ns)
    for name in _list_folders(folder, parents):
        yield from _walk_files(folder / name, parents, f"{prefix}{name}/")


def _list_folders(folder: Path, parents: tuple[Path, ...]) -> list[str]:
    """Return the names of the subfolders, sorted, without links to `parents` or to folders above them."""
    names = sorted(entry.name for entry in _scan(folder) if entry.is_dir())
    targets = {name: (folder / name).resolve() for name in names}
    return [name for name in names if not any(parent.is_relative_to(targets[name]) for parent in parents)]


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, without hidden ones and broken or circular links."""
    for entry in os.scandir(folder):
        if not _is_hidden(entry.name) and (not entry.is_symlink() or (folder / entry.name).exists()):
            yield entry


def find_broken_links(folder: Path) -> list[str]:
    """Return the names of the broken links in a folder and its subfolders, sorted."""
    broken: list[str] = []
    for entry in os.scandir(folder):
        if entry.is_symlink():
            broken += [] if _is_hidden(entry.name) or Path(entry.path).exists() else [entry.name]
        elif entry.is_dir() and not _is_hidden(entry.name):
            broken += [f"{entry.name}/{name}" for name in find_broken_links(Path(entry.path))]
    return sorted(broken)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


@cache
def _open_s3(bucket: str, endpoint: str | None, region: str | None, anonymous: bool) -> Any:
    """Open S3 or a compatible store; the region of a bucket on AWS is looked up."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    if region is None and endpoint is None:
        region = resolve_s3_region(bucket)
    elif region is None:  # most other stores have a single region with any name; skips the metadata query of AWS
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return S3FileSystem(
        anonymous=anonymous,
        region=region,
        endpoint_override=endpoint,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


@cache
def _open_gcs(endpoint: str | None, anonymous: bool) -> Any:
    from pyarrow.fs import GcsFileSystem

    scheme, _, host = (endpoint or "").rpartition("://")
    return GcsFileSystem(
        anonymous=anonymous,
        scheme=scheme or None,
        endpoint_override=host or None,
        retry_time_limit=timedelta(seconds=REQUEST_SECONDS),
    )


@cache
def _open_uri(url: str) -> tuple[Any, str]:
    """Return the file system of any other URL, and the path in it."""
    from pyarrow.fs import FileSystem

    # File names may contain spaces and other characters that pyarrow rejects in URLs.
    file_system, path = FileSystem.from_uri(quote(url, safe="%/:@~,;!$'()*+=&[]"))
    return file_system, str(path)


def _explain(problem: Exception, location: Location) -> str:
    """Return a short reason why a file system failed, without request ids, and the repair."""
    text = str(problem)
    if isinstance(problem, FileNotFoundError):
        return "does not exist; correct the URL, or restore the file."
    if "NO_SUCH_BUCKET" in text or "bucket does not exist" in text:
        reason = f"there is no bucket {location.path.partition('/')[0]!r}; create it, or correct the URL"
    elif re.search(r"ACCESS_DENIED|status 403|FORBIDDEN|PERMISSION_DENIED|INVALID_ACCESS_KEY|SIGNATURE", text, re.I):
        reason = f"permission denied; set credentials in the environment ({AWS_VARIABLES} for s3://)"
        reason += " or use a role with access, or add ?anonymous=true for a public bucket"
    elif re.search(r"access token|UNAUTHENTICATED|credentials? (was|were|is|are) not", text, re.I):
        reason = "no credentials were found; set them in the environment, or add ?anonymous=true"
    elif re.search(r"PERMANENT_REDIRECT|status 301|resolving region", text, re.I) and "NETWORK" not in text:
        reason = "its bucket is in another region; add ?region=NAME"
    elif re.search(r"NETWORK_CONNECTION|CURL error|UNAVAILABLE|timed? ?out", text, re.I):
        reached = location.endpoint or os.environ.get("AWS_ENDPOINT_URL") if location.scheme == "s3" else None
        server = f"its server ({reached})" if reached else "its server"
        reason = f"{server} cannot be reached ({_shorten(text)}); check the network and ?endpoint="
    elif isinstance(problem, OSError) and problem.strerror:
        reason = f"{problem.strerror}; check the URL"
    else:
        reason = f"{_shorten(text)}; check the URL"
    return f"cannot be used: {reason}."


def _shorten(text: str) -> str:
    """Return the last and most specific part of a message of pyarrow, without internal details."""
    line = next(iter(text.strip().splitlines()), "no reason was given")
    found = re.search(r"(?:Details: |CURL error \[\d+\]=)(.*?)(?: error_info\W.*)?$", line)
    line = found[1] if found else line.rpartition(" operation: ")[2]
    return re.sub(r"\s*\(Request ID.*?\)", "", line).rstrip(".")[:120]
