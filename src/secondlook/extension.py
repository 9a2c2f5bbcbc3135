"""What those who build on the core import beside the top level: clients in this package, and wheels of your own.

A client knows nothing of the inside of the rooms: it imports names of `secondlook` and of this module, and a test
proves it for the clients in this package. Importing it loads no framework, no image library and no runtime.
"""

from secondlook.arrays import PROBABILITY_FLOORS, Array, Output, check_pixels, is_number, is_whole_number
from secondlook.classifiers import (
    Classifier,
    HttpClient,
    OnnxClassifier,
    OnnxFile,
    Preprocessing,
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
    LabelStudio,
    LookedImage,
    LookStream,
    PixelType,
    Plan,
    ReviewImage,
    RowOptions,
    compile_policy,
    detail_decisions,
    encode_png,
    list_outputs,
    load_policy,
    make_decisions,
    make_row_table,
    resolve_classifier,
)
from secondlook.errors import (
    ANY,
    ClassifierError,
    ClusterError,
    DecisionError,
    ExportError,
    MissingExtraError,
    MonitoringError,
    Repair,
    SecondLookError,
    ServingError,
    SourceError,
    shorten_reason,
)
from secondlook.estimators import METHODS, compile_method, find_method
from secondlook.files import (
    FrozenRecord,
    compute_checksum,
    describe_invalid,
    exclusive_lock,
    shared_lock,
    write_atomically,
    write_bytes_atomically,
)
from secondlook.imports import import_extra, lazy_attributes
from secondlook.monitoring import SCORE_METADATA, find_class
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
from secondlook.policies import Policy, read_policy
from secondlook.predictions import (
    DEFAULT_EXECUTION,
    Chunking,
    ComputedChunk,
    Engine,
    Execution,
    LoadWorker,
    Predictions,
    Worker,
)
from secondlook.progress import progress_bar
from secondlook.report import describe_monitor_plots
from secondlook.sources import UnreadableImageError, open_source, read_image
from secondlook.specs import expand_path, short_name
from secondlook.tables import TextTable, format_csv_row, format_html, unescape_formula
from secondlook.threads import limit_threads
from secondlook.views import View, ViewSet

__all__ = [  # noqa: RUF022 - in groups
    # Errors: what is wrong, the argument and value it is about, and how to repair it
    "MissingExtraError",
    "MonitoringError",
    "ServingError",
    "SourceError",
    "ANY",
    "ClassifierError",
    "ClusterError",
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
    "FrozenRecord",
    "compute_checksum",
    "describe_invalid",
    "exclusive_lock",
    "expand_path",
    "format_csv_row",
    "lazy_attributes",
    "shared_lock",
    "unescape_formula",
    "write_atomically",
    "TextTable",
    "format_html",
    "import_extra",
    "progress_bar",
    "short_name",
    "write_bytes_atomically",
    # Engines: chunks of a job on other machines
    "Chunking",
    "ComputedChunk",
    "Engine",
    "LoadWorker",
    "Worker",
    "limit_threads",
    # Images
    "UnreadableImageError",
    "check_pixels",
    "encode_png",
    "read_image",
    "open_source",
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
    "rounds_at_most_once",
    # Classifiers and their preprocessing
    "HttpClient",
    "Classifier",
    "OnnxClassifier",
    "OnnxFile",
    "Preprocessing",
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
    "LookStream",
    "LookedImage",
    "RowOptions",
    "detail_decisions",
    "make_row_table",
    "Decisions",
    "Plan",
    "Policy",
    "compile_policy",
    "load_policy",
    "make_decisions",
    "read_policy",
    "resolve_classifier",
    # Review and monitoring
    "ReviewImage",
    "SCORE_METADATA",
    "describe_monitor_plots",
    "find_class",
    "LabelStudio",
    # Exported files
    "EXPORT_METADATA",
    "ExportRecord",
    "ExportedFile",
    "FileOutputs",
    "INPUT_NAME",
    "PixelType",
    "list_outputs",
]
