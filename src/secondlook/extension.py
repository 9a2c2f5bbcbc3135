"""What those who build on the core import beside the top level: `onnx_export`, other clients, and wheels of your own.

A client knows nothing of the inside of the rooms: it imports names of `secondlook` and of this module, and a test
proves it for the clients in this package. Importing it loads no framework, no image library and no runtime.
"""

from secondlook.arrays import PROBABILITY_FLOORS, Array, Output, is_number, is_whole_number
from secondlook.classifiers import (
    Classifier,
    FunctionClassifier,
    OnnxClassifier,
    OnnxFile,
    Preprocessing,
    RemoteClassifier,
    SklearnClassifier,
    TorchClassifier,
)
from secondlook.decisions import (
    EXPORT_METADATA,
    INPUT_NAME,
    Decisions,
    ExportedFile,
    ExportRecord,
    FileOutputs,
    Looking,
    PixelType,
    Plan,
    compile_policy,
    group_by_shape,
    list_outputs,
    load_policy,
    make_decisions,
    resolve_classifier,
)
from secondlook.errors import (
    ANY,
    ClassifierError,
    DecisionError,
    ExportError,
    Repair,
    SecondLookError,
    shorten_reason,
)
from secondlook.estimators import METHODS, compile_method, find_method
from secondlook.files import write_bytes_atomically
from secondlook.imports import import_extra
from secondlook.operations import (
    Axis,
    Blur,
    Border,
    Copy,
    Filter,
    Frame,
    Luminance,
    Operation,
    Reorder,
    Tone,
    Warp,
    rounds_at_most_once,
)
from secondlook.policies import POLICY_METADATA, Policy, Schedule, has_onnx_suffix, read_policy
from secondlook.predictions import (
    DEFAULT_EXECUTION,
    Execution,
    Predictions,
    chunk_rows,
    find_first_image,
    read_ahead,
)
from secondlook.progress import progress_bar
from secondlook.sources import open_source
from secondlook.specs import short_name
from secondlook.tables import TextTable, format_html
from secondlook.views import View, ViewSet, as_view_set_with_identity

__all__ = [  # noqa: RUF022 - in groups
    # Errors: what is wrong, the argument and value it is about, and how to repair it
    "ANY",
    "ClassifierError",
    "DecisionError",
    "ExportError",
    "Repair",
    "SecondLookError",
    "shorten_reason",
    # Arrays and numbers
    "Array",
    "Output",
    "is_number",
    "is_whole_number",
    # Files, optional packages, progress and text
    "TextTable",
    "format_html",
    "import_extra",
    "progress_bar",
    "short_name",
    "write_bytes_atomically",
    # Images, read ahead in blocks
    "chunk_rows",
    "find_first_image",
    "open_source",
    "read_ahead",
    # Views as operations on pixels, which every engine runs
    "Axis",
    "Blur",
    "Border",
    "Copy",
    "Filter",
    "Frame",
    "Luminance",
    "Operation",
    "Reorder",
    "Tone",
    "View",
    "ViewSet",
    "Warp",
    "as_view_set_with_identity",
    "rounds_at_most_once",
    # Classifiers and their preprocessing
    "Classifier",
    "FunctionClassifier",
    "OnnxClassifier",
    "OnnxFile",
    "Preprocessing",
    "RemoteClassifier",
    "SklearnClassifier",
    "TorchClassifier",
    # Predictions and methods
    "DEFAULT_EXECUTION",
    "Execution",
    "Predictions",
    "METHODS",
    "PROBABILITY_FLOORS",
    "compile_method",
    "find_method",
    # Policies, the plans they compile to, and the one loop that looks at images
    "Decisions",
    "Looking",
    "Plan",
    "Policy",
    "Schedule",
    "compile_policy",
    "load_policy",
    "make_decisions",
    "read_policy",
    "resolve_classifier",
    # Exported files
    "EXPORT_METADATA",
    "ExportRecord",
    "ExportedFile",
    "FileOutputs",
    "INPUT_NAME",
    "POLICY_METADATA",
    "PixelType",
    "group_by_shape",
    "has_onnx_suffix",
    "list_outputs",
]
