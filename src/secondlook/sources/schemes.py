"""The registry of schemes: every kind of source that a text can name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from secondlook.errors import SourceError
from secondlook.registry import did_you_mean
from secondlook.sources.source import ReadOptions, Source
from secondlook.sources.spec import Spec

Opener = Callable[[Spec, ReadOptions], Source]


@dataclass(frozen=True)
class SourceScheme:
    """One kind of source: how it is written, what it is, which options are its own, and how it is opened."""

    name: str
    form: str
    summary: str
    open: Opener
    options: Mapping[str, str] = field(default_factory=dict)
    extra: str | None = None


SOURCES: dict[str, SourceScheme] = {}
"""Every scheme by its name; the command line and the documentation list it."""


def source_scheme(
    name: str, *, form: str, summary: str, options: Mapping[str, str] | None = None, extra: str | None = None
) -> Callable[[Opener], Opener]:
    """Register the decorated function as the opener of `name:...`."""

    def register(opener: Opener) -> Opener:
        if name in SOURCES:
            raise SourceError(f"the scheme {name!r} is registered already; choose another name.")
        SOURCES[name] = SourceScheme(name, form, summary, opener, dict(options or {}), extra)
        return opener

    return register


def scheme_named(name: str, text: str) -> SourceScheme:
    """Return the scheme of a spec text, or say which ones there are."""
    if name not in SOURCES:
        raise SourceError(
            f"unknown scheme {name!r} in {text!r}; known schemes: {', '.join(sorted(SOURCES))}."
            + did_you_mean(name, SOURCES)
        )
    return SOURCES[name]
