"""The one grammar of texts that name a model, a data source or an export: `scheme:location?option=value&...`."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from secondlook.errors import SecondLookError
from secondlook.registry import did_you_mean

MEMBER_SEPARATOR = " | "
"""Joins the specs of an ensemble's members into its name, from which it can be loaded again."""


@dataclass(frozen=True)
class Spec:
    """A parsed text. `parse_spec(str(spec)) == spec`.

    The location is literal: a `?` in it does no harm, since options start at the last `?` that `name=value` follows.
    Option values are percent-encoded where they hold `&` or `%`.
    """

    scheme: str
    location: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = "&".join(f"{name}={quote(value, safe='/,:~')}" for name, value in self.options.items())
        # A location that itself ends like options is closed by an empty option list.
        is_closed = bool(options) or _split_at_options(self.location)[0] != self.location
        return f"{self.scheme}:{self.location}" + (f"?{options}" if is_closed else "")

    @property
    def path(self) -> Path:
        """The location as a path, with `~` expanded."""
        return expand_path(self.location)

    @property
    def short_name(self) -> str:
        """The `name` option, or else the last component of the location: 'b.onnx' for 'onnx:a/b.onnx?mean=.5'."""
        if "name" in self.options:
            return self.options["name"]
        place = self.location.rstrip("/")
        return place.rpartition("/")[2].rpartition(":")[2] or place

    def with_options(self, options: Mapping[str, str]) -> "Spec":
        """Return the spec with options added; those given here replace those of the same name."""
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
    """Parse a text; whether the scheme and the options exist is up to the registry that opens it."""
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
    """Return a path with `~` expanded; unlike `Path.expanduser`, a `~` of an unknown user is part of a name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


def short_name(text: str) -> str:
    """Return what people call the model or the data set of a text; members of an ensemble are joined by ' + '."""
    names = []
    for member in text.split(MEMBER_SEPARATOR):
        scheme, colon, rest = member.partition(":")
        location, pairs = _split_at_options(rest if colon else scheme)
        # The name of an unnamed model (a class or a function) follows no grammar, so nothing is refused here.
        options = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in pairs)}
        names.append(Spec(scheme, location, options).short_name or member)
    return " + ".join(names)


def _split_at_options(text: str) -> tuple[str, list[str]]:
    """Split at the last `?` that options, or nothing, follow; returns the text before it and the options."""
    location, mark, options = text.rpartition("?")
    if not mark or not location or (options and "=" not in options):
        return text, []
    return location, options.split("&") if options else []
