"""Specs of models, data sources and exports: `scheme:location?option=value&...`."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from secondlook.errors import SecondLookError
from secondlook.registry import did_you_mean

MEMBER_SEPARATOR = " | "
"""Joins the specs of an ensemble's members into its name, which can be loaded again."""


@dataclass(frozen=True)
class Spec:
    """A parsed spec. `parse_spec(str(spec)) == spec`.

    The location is literal and may contain `?`: options start at the last `?` before `name=value`.
    In option values, `&` and `%` are percent-encoded.
    """

    scheme: str
    location: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = "&".join(f"{name}={quote(value, safe='/,:~')}" for name, value in self.options.items())
        # An empty option list follows a location that ends like options.
        is_closed = bool(options) or _split_at_options(self.location)[0] != self.location
        return f"{self.scheme}:{self.location}" + (f"?{options}" if is_closed else "")

    @property
    def path(self) -> Path:
        """The location as a path, with `~` expanded."""
        return expand_path(self.location)

    @property
    def short_name(self) -> str:
        """The `name` option, or the last component of the location: 'b.onnx' for 'onnx:a/b.onnx?mean=.5'."""
        if "name" in self.options:
            return self.options["name"]
        place = self.location.rstrip("/")
        return place.rpartition("/")[2].rpartition(":")[2] or place

    def with_options(self, options: Mapping[str, str]) -> "Spec":
        """Return the spec with added or replaced options."""
        return Spec(self.scheme, self.location, {**self.options, **options})

    def without(self, names: Collection[str]) -> "Spec":
        """Return the spec without the named options."""
        kept = {name: value for name, value in self.options.items() if name not in names}
        return Spec(self.scheme, self.location, kept)

    def choice(self, option: str, allowed: Collection[str], default: str, error: type[SecondLookError]) -> str:
        """Return the value of an option that must be one of `allowed`."""
        value = self.options.get(option, default)
        if value not in allowed:
            repair = f"expected one of {', '.join(allowed)}.{did_you_mean(value, allowed)}"
            raise error(f"in {str(self)!r}", argument=option, value=value, repair=repair)
        return value


def parse_spec(text: str, error: type[SecondLookError] = SecondLookError) -> Spec:
    """Parse a spec, without checking that the scheme and the options exist."""
    scheme, colon, rest = text.partition(":")
    if not colon or not scheme:
        raise error(f"{text!r} has no scheme; expected SCHEME:LOCATION, such as 'onnx:model.onnx' or 'folder:val/'.")
    location, options = split_options(rest, error)
    if not location:
        raise error(f"{text!r} has no location after '{scheme}:'; expected '{scheme}:LOCATION'.")
    return Spec(scheme, location, options)


def split_options(text: str, error: type[SecondLookError] = SecondLookError) -> tuple[str, dict[str, str]]:
    """Split 'TEXT?option=value&option=value' into the text before the options, and the options."""
    location, pairs = _split_at_options(text)
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise error(f"{pair!r} in {text!r} is not an option; expected ?name=value&name=value.")
        if name in options:
            raise error(f"duplicate option {name!r} in {text!r}; give it once.")
        options[name] = unquote(value)
    return location, options


def expand_path(text: str) -> Path:
    """Return a path with `~` expanded; unlike `Path.expanduser`, keep `~name` of an unknown user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


def short_name(text: str) -> str:
    """Return the short name of a model or a data source for tables; members of an ensemble are joined by ' + '."""
    names = []
    for member in text.split(MEMBER_SEPARATOR):
        scheme, colon, rest = member.partition(":")
        location, pairs = _split_at_options(rest if colon else scheme)
        # The name of an unnamed model (a class or a function) is not a spec, so nothing is rejected here.
        options = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in pairs)}
        names.append(Spec(scheme, location, options).short_name or member)
    return " + ".join(names)


def _split_at_options(text: str) -> tuple[str, list[str]]:
    """Split at the last `?` before options or the end; return the text before it and the options."""
    location, mark, options = text.rpartition("?")
    if not mark or not location or (options and "=" not in options):
        return text, []
    return location, options.split("&") if options else []
