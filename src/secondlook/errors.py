"""Errors that users can repair: each is a `SecondLookError` with a message that contains fault and repair.

Messages have fields, so that each front end names arguments in its own language: `overwrite=True` in Python,
`--force` on the command line. `str(error)` is the Python form.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

NameArgument = Callable[[str, object], str]
"""Formats an argument with its value for a front end; `ANY` means any value."""

ANY: Any = ...
"""Placeholder for a value that the user chooses: `Repair("pass {labels}", labels=ANY)`."""

LONGEST_REASON = 300
"""Maximum length of another library's message within ours."""


class Repair:
    """A repair that names arguments: `Repair("pass {overwrite} to replace it", overwrite=True)`.

    `of` is the function that takes them, if another function raises the error: front ends receive "score.audit"
    instead of "audit". The beginning of a call, such as "policy.bind(", is part of the message in Python only.
    """

    def __init__(self, text: str, *, of: object = "", **arguments: object) -> None:
        self.text = text
        self.arguments = {name: (f"{of}.{name}".lstrip("."), value) for name, value in arguments.items()}

    def otherwise(self, text: str, *, of: object = "", **arguments: object) -> "Repair":
        """Return this repair with an alternative."""
        both = Repair(f"{self.text}, or {text}", of=of, **arguments)
        both.arguments |= self.arguments
        return both

    def word(self, name_argument: NameArgument) -> str:
        """Return the repair with its arguments in the language of a front end."""
        return self.text.format(**{name: name_argument(*argument) for name, argument in self.arguments.items()})


def name_in_python(name: str, value: object) -> str:
    """Format an argument as in Python, in its call if that is known; with `ANY`, its name alone."""
    call, _, name = name.rpartition(".")
    text = f"{name}={'' if value is ANY else repr(value)}"
    return f"{call}{text})" if "(" in call else text


class Message:
    """Message of an error or a warning, as fields: a fault, its argument and value, and a repair.

    With `argument`, the sentence begins with it: `DecisionError("is out of range", argument="level", value=2)` reads
    "level=2 is out of range."
    """

    def __init__(
        self,
        fault: str = "",
        *,
        argument: str | None = None,
        value: object = ANY,
        repair: str | Repair | None = None,
    ) -> None:
        super().__init__(fault)  # type: ignore[call-arg]  # an exception comes next
        self.fault, self.argument, self.repair = fault, argument, repair
        self.prefix = ""
        self.value = None if value is ANY else value
        self._shown_value = value

    @classmethod
    def from_error(cls, error: "Message", prefix: str = "") -> Self:
        """Return an error or a warning of this class with the fields of `error`; `prefix` precedes its sentence."""
        made = cls(error.fault, argument=error.argument, value=error._shown_value, repair=error.repair)
        made.prefix = f"{prefix}{error.prefix}"
        return made

    def word(self, name_argument: NameArgument) -> str:
        """Return the whole sentence in the language of a front end."""
        named = "" if self.argument is None else f"{name_argument(self.argument, self._shown_value)} "
        start = f"{self.prefix}{named}"
        repair = self.repair.word(name_argument) if isinstance(self.repair, Repair) else self.repair
        if self.argument is None and repair is None:
            return f"{start}{self.fault}"
        sentence = f"{start}{self.fault.rstrip('.')}" + ("" if repair is None else f"; {repair.rstrip('.')}")
        return sentence if sentence.endswith("?") else f"{sentence}."

    def __str__(self) -> str:
        return self.word(name_in_python)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.__dict__)


def _restore(kind: type[Exception], fields: dict[str, Any]) -> Any:
    message: Any = Exception.__new__(kind)
    message.__dict__.update(fields)
    return message


class SecondLookError(Message, Exception):
    """An error that the user can repair. The command line prints its message and exits with code 2."""


class SecondLookWarning(Message, UserWarning):
    """A warning that the user can act on."""


class CalibrationWarning(SecondLookWarning):
    """A guarantee that is weaker than it seems, since other calibrations used the same images."""


class SourceError(SecondLookError):
    """Images, labels or a data set that cannot be read."""


class ViewError(SecondLookError):
    """An invalid view, set of views or step."""


class ClassifierError(SecondLookError):
    """A classifier that cannot be loaded, or whose output is invalid."""


class PredictionsError(SecondLookError):
    """Predictions that are malformed, missing or damaged."""


class ConfidenceError(SecondLookError):
    """A confidence that is unknown or cannot be computed from the given predictions."""


class MetricError(SecondLookError):
    """A metric that is unknown or undefined for the given values."""


class DecisionError(SecondLookError):
    """A threshold, guarantee or policy that cannot be computed or must not be used."""


class DiagnosisError(SecondLookError):
    """Views that cannot be diagnosed or chosen from the given predictions."""


class ReportError(SecondLookError):
    """A report that cannot be written."""


class ClusterError(SecondLookError):
    """A cluster that cannot be reached or lacks resources, or workers that fail."""


class MonitoringError(SecondLookError):
    """Scores or reviewed labels that cannot be monitored."""


class ExportError(SecondLookError):
    """A policy or classifier that cannot be exported to ONNX."""


class ServingError(SecondLookError):
    """The service cannot be started, or a request to it fails."""


class MissingExtraError(SecondLookError):
    """A feature with an optional dependency that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs {package!r}. Install it with: pip install 'secondlook[{extra}]'")


def shorten_reason(error: BaseException) -> str:
    """Return the first line of an error's message, truncated; the type of an error without a message."""
    lines = str(error).strip().splitlines()
    reason = lines[0].strip().rstrip(".;:") if lines else ""
    return (reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}...") or type(error).__name__


@contextmanager
def reject_failures(problem: str, repair: str, error: type[SecondLookError] = ClassifierError) -> Iterator[None]:
    """Raise all exceptions of a library on an untrusted file as `error`: problem, reason, repair.

    It catches all classes, since libraries fail on damaged files in undocumented ways.
    """
    try:
        yield
    except SecondLookError:
        raise
    except Exception as failure:
        raise error(f"{problem}: {shorten_reason(failure)}; {repair.rstrip('.')}.") from failure
