"""The one family of errors: whatever a user can put right is a `SecondLookError` with a sentence that says how."""


class SecondLookError(Exception):
    """Something the user can repair. The command line prints its sentence and ends with exit code 2."""


class SourceError(SecondLookError):
    """Images, labels or a data set that cannot be read."""


class ViewError(SecondLookError):
    """A view, a set of views or a step that does not make sense."""


class ClassifierError(SecondLookError):
    """A classifier that cannot be loaded, or that answers what it should not."""


class PredictionsError(SecondLookError):
    """Predictions that are malformed, missing or damaged."""


class ConfidenceError(SecondLookError):
    """A confidence that is unknown or cannot be computed from the predictions at hand."""


class MetricError(SecondLookError):
    """A metric that is unknown or has no meaning for the given values."""


class DecisionError(SecondLookError):
    """A threshold, guarantee or policy that cannot be made or must not be used."""


class SearchError(SecondLookError):
    """A choice of views that cannot be made from the given pool."""


class ExperimentError(SecondLookError):
    """An experiment that is unknown or lacks something it needs."""


class ReportError(SecondLookError):
    """A report that cannot be drawn or written."""


class MissingExtraError(SecondLookError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs {package!r}. Install it with: pip install 'secondlook[{extra}]'")
