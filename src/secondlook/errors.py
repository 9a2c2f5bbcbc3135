"""The errors that users can repair: every one is a `SecondLookError` that says what is wrong and how to repair it.

A message has fields, so that each front end names arguments in its own language: `overwrite=True` in Python,
`--force` on the command line. `str(error)` is the Python form.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

NameArgument = Callable[[str, object], str]
"""Returns how a front end writes an argument with a value; `ANY` stands for whatever value the user has."""

ANY: Any = ...
"""Value of an argument in a repair that the user knows best: `Repair("pass {labels}", labels=ANY)`."""

LONGEST_REASON = 300
"""Characters of a library's message that are kept in ours."""


class Repair:
    """A repair that names arguments: `Repair("pass {overwrite} to replace it", overwrite=True)`.

    `of` is the function that takes them, where several do and another one raises the error: a front end is given
    "score.audit" instead of "audit".
    """

    def __init__(self, text: str, *, of: object = "", **arguments: object) -> None:
        self.text = text
        self.arguments = {name: (f"{of}.{name}".lstrip("."), value) for name, value in arguments.items()}

    def word(self, name_argument: NameArgument) -> str:
        """Return the sentence with its arguments in the language of a front end."""
        return self.text.format(**{name: name_argument(*argument) for name, argument in self.arguments.items()})


def name_in_python(name: str, value: object) -> str:
    """Return an argument as it is written in Python; with `ANY`, its name alone."""
    return f"{name.rpartition('.')[2]}={'' if value is ANY else repr(value)}"


class Message:
    """Text of an error or a warning in fields: a fault, the argument and value it is about, and a repair.

    With `argument`, the sentence begins with it: `DecisionError("is out of range", argument="level", value=2)` says
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
        """Return another error, or a warning, with the fields of this one; `prefix` goes before its sentence."""
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
    """A confidence that is unknown or cannot be computed from the predictions at hand."""


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
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs {package!r}. Install it with: pip install 'secondlook[{extra}]'")


def shorten_reason(error: BaseException) -> str:
    """Return the first line of an error's message, cut to a readable length; the type of an error without one."""
    lines = str(error).strip().splitlines()
    reason = lines[0].strip().rstrip(".;:") if lines else ""
    return (reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}...") or type(error).__name__


@contextmanager
def reject_failures(problem: str, repair: str, error: type[SecondLookError] = ClassifierError) -> Iterator[None]:
    """Raise whatever a library raises on a file from elsewhere as `error`: problem, reason, repair.

    No list of exceptions is complete here: a damaged file makes the libraries fail in ways that they do not document.
    """
    try:
        yield
    except SecondLookError:
        raise
    except Exception as failure:
        raise error(f"{problem}: {shorten_reason(failure)}; {repair.rstrip('.')}.") from failure
