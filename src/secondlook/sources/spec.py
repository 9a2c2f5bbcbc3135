"""The text that names a source: `scheme:location?option=value&option=value`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from secondlook.errors import SourceError
from secondlook.registry import did_you_mean


@dataclass(frozen=True)
class Spec:
    """A parsed text; `str(spec)` parses to the same value again."""

    scheme: str
    location: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.scheme}:{self.location}" + (f"?{_joined(self.options)}" if self.options else "")

    @property
    def path(self) -> Path:
        """The location as a path, with `~` expanded."""
        return Path(self.location).expanduser()

    def without(self, names: Collection[str]) -> "Spec":
        """Return the same spec less the named options."""
        kept = {name: value for name, value in self.options.items() if name not in names}
        return Spec(self.scheme, self.location, kept)

    def one_of(self, option: str, allowed: Collection[str], default: str) -> str:
        """Return the option's value, which must be one of `allowed`."""
        value = self.options.get(option, default)
        if value not in allowed:
            raise SourceError(
                f"option {option}={value!r} in {str(self)!r} is none of {', '.join(allowed)}."
                + did_you_mean(value, allowed)
            )
        return value


def parse_spec(text: str) -> Spec:
    """Parse a text; whether its scheme and options exist is for the registry to say."""
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise SourceError(f"{text!r} names no kind of source; write SCHEME:LOCATION{_probable_spec(text)}.")
    location, options = _split_options(rest)
    if not location:
        raise SourceError(
            f"{text!r} says nothing after '{scheme}:'; write where the data is, as in '{scheme}:LOCATION'."
        )
    return Spec(scheme, location, _parse_options(options, text))


def with_options(text: str, options: Mapping[str, str]) -> str:
    """Return the text of a source with more options behind it."""
    _, given = _split_options(text)
    return f"{text}{'&' if given else '?'}{_joined(options)}"


def _joined(options: Mapping[str, str]) -> str:
    return "&".join(f"{name}={quote(value, safe='/,:~')}" for name, value in options.items())


def _split_options(rest: str) -> tuple[str, str]:
    """Split at the last `?` that an option follows, so that a `?` in a file name does no harm."""
    location, mark, options = rest.rpartition("?")
    return (location, options) if mark and "=" in options else (rest, "")


def _parse_options(text: str, spec: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in text.split("&") if text else ():
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise SourceError(f"{pair!r} in {spec!r} is not an option; write options as ?name=value&name=value.")
        if name in options:
            raise SourceError(f"option {name!r} stands twice in {spec!r}; keep one.")
        options[name] = unquote(value)
    return options


def _probable_spec(text: str) -> str:
    """Guess the scheme for a bare path from what lies there, for the error message only."""
    path = Path(text).expanduser()
    by_suffix = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "hf"}
    scheme = "folder" if path.is_dir() else by_suffix.get(path.suffix.lower())
    return f", here perhaps {scheme + ':' + text!r}" if scheme else ", for example 'folder:val/' or 'npz:test.npz'"
