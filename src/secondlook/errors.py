"""The errors that users can repair: every one is a `SecondLookError` whose message says how."""


class SecondLookError(Exception):
    """An error that the user can repair. The command line prints its message and exits with code 2."""


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
