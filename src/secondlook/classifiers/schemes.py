"""The registry of ways to name a classifier: one frozen record per scheme."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from secondlook.arrays import OUTPUTS, Output
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.preprocessing import SETTINGS, Preprocessing
from secondlook.errors import ClassifierError


@dataclass(frozen=True)
class LoadOptions:
    """What the user states about a classifier, whatever kind it is.

    Attributes
    ----------
    spec
        The text or a description of the object, for messages and as the name where none is given.
    output, name
        As given to `load_classifier`, or None.
    name_in_spec
        Whether the name was given in the text: then the text says all, and the classifier can be loaded again from it.
    settings
        Single preprocessing settings that were given.
    replacement
        A whole preprocessing that was given.
    """

    spec: str
    output: Output | None = None
    name: str | None = None
    name_in_spec: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    replacement: Preprocessing | None = None

    @property
    def shown_name(self) -> str:
        """The name for people: the given one, or the spec, where that holds all that was given."""
        return self.spec if self.name is None or self.name_in_spec else self.name

    def stated_output(self) -> Output:
        """Return what the answers mean, for formats that do not say it themselves."""
        if self.output is None:
            raise ClassifierError(
                f"nothing says what the answers of {self.spec!r} mean; "
                "pass output='logits' or output='probabilities' (in a text: ?output=logits)."
            )
        return self.output

    def known_output(self, known: Output) -> Output:
        """Return what the answers mean, for formats that say it; a contradicting statement is an error."""
        if self.output not in (None, known):
            raise ClassifierError(
                f"output={self.output!r} was stated for {self.spec!r}, but this kind of classifier gives {known}; "
                "leave output= out."
            )
        return known

    @property
    def given_settings(self) -> tuple[str, ...]:
        """The names of all preprocessing settings that the user gave."""
        default, given = Preprocessing(), self.replacement or Preprocessing()
        return (*self.settings, *(name for name in SETTINGS if getattr(given, name) != getattr(default, name)))

    @property
    def layout(self) -> object:
        """The layout that the user gave, or None."""
        return self.settings.get("layout") or (self.replacement.layout if self.replacement else None)

    def preprocessing(self, own: Preprocessing) -> Preprocessing:
        """Return the classifier's own preprocessing with what was given in its place; what it insists on stays."""
        if self.replacement is not None:
            given = self.replacement
            own = dataclasses.replace(
                given,
                size=given.size or own.size,
                channels=given.channels or own.channels,
                input_dtype=own.input_dtype,
            )
        return own.with_settings(self.settings)


Opener = Callable[..., Classifier]


@dataclass(frozen=True)
class ModelScheme:
    """One way to name a classifier.

    Attributes
    ----------
    name
        What stands before the colon.
    form
        How such a text looks, or what object is meant.
    says
        One line for people.
    extra
        The optional dependencies it needs, or None.
    open
        `open(target, statement, **options)`: target is the text behind the colon, or the object.
    recognizes
        Tells whether an object is of this kind; None where there is only a text.
    """

    name: str
    form: str
    says: str
    extra: str | None
    open: Opener
    recognizes: Callable[[object], bool] | None

    @property
    def options(self) -> Mapping[str, object]:
        """The options this scheme takes beside output, name and preprocessing, with their types."""
        hints = get_type_hints(self.open)
        parameters = inspect.signature(self.open).parameters.values()
        return {each.name: hints.get(each.name) for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


MODELS: dict[str, ModelScheme] = {}
"""Every registered scheme by name."""


def model_scheme(
    name: str, *, form: str, says: str, extra: str | None = None, recognizes: Callable[[object], bool] | None = None
) -> Callable[[Opener], Opener]:
    """Register the decorated opener under a scheme name."""

    def register(opener: Opener) -> Opener:
        if name in MODELS:
            raise ClassifierError(f"the classifier scheme {name!r} is registered already; choose another name.")
        MODELS[name] = ModelScheme(name, form, says, extra, opener, recognizes)
        return opener

    return register


def checked_output(output: Any) -> Output | None:
    """Return 'logits', 'probabilities' or None, or say which are allowed."""
    if output is not None and output not in OUTPUTS:
        raise ClassifierError(f"output={output!r} is unknown; state output='logits' or output='probabilities'.")
    stated: Output | None = output
    return stated
