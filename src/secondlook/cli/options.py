"""Options shared by several commands, settings files, and model options."""

import inspect
import json
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer
from typer import Option

from secondlook.arrays import Output
from secondlook.classifiers import MODELS, Classifier, load_classifier, split_credentials
from secondlook.errors import CalibrationWarning, ClassifierError, ConfidenceError, DecisionError, SecondLookError
from secondlook.estimators import METHODS
from secondlook.files import read_regular_file
from secondlook.metrics import METRICS
from secondlook.predictions import Execution, PredictFrom
from secondlook.progress import hide_hugging_face_bars
from secondlook.registry import did_you_mean
from secondlook.sources import SOURCES, OnError
from secondlook.specs import MEMBER_SEPARATOR, parse_spec
from secondlook.tables import escape_controls
from secondlook.views import PRESETS, ViewWarning

TYPES: dict[object, str] = {bool: "", int: "N", float: "NUMBER", str: "TEXT"}
VIEWS_HELP = f"Preset, views in quotes, or a .txt file of views. Presets: {', '.join(PRESETS)}."
THRESHOLD_METHODS = {name: method for name, method in METHODS.items() if not method.is_rank}
"""The methods for thresholds."""
METHOD_HELP = "Confidence method, such as mean or 'max-logit-pnorm?p=3'."
ON_ERROR_HELP = "Fail on an unreadable image, or skip and list it."

# The first sentence of a help text is the same in all commands with the option.
POLICY_HELP = "Policy file."
PolicyFile = Annotated[Path, Option(metavar="FILE", help=f"{POLICY_HELP} Written by calibrate or label.")]
PolicyOrExport = Annotated[
    Path,
    Option(metavar="FILE", help=f"{POLICY_HELP} Written by calibrate or label; an ONNX file of export works too."),
]
MODEL_HELP = "Classifier, such as onnx:model.onnx; repeat for an ensemble."
PolicyModel = Annotated[
    list[str] | None,
    Option(metavar="SPEC", help=f"{MODEL_HELP} Required if the policy cannot load its classifier by itself."),
]
DATA_HELP = "Images, such as folder:DIR or npz:FILE."
Data = Annotated[str, Option(metavar="SPEC", help=f"{DATA_HELP} Schemes: {', '.join(SOURCES)}.")]
UNKNOWN_HELP = "Images of none of the classes (out-of-distribution), such as folder:others/."
RUN_HELP = "Run folder that evaluate wrote."
LIMIT_HELP = "Use at most this many images, spread evenly over the data."
Limit = Annotated[int, Option(metavar="N", min=1, help=LIMIT_HELP)]
LimitOrAll = Annotated[int | None, Option(metavar="N", min=1, help=LIMIT_HELP, show_default="all images")]
Views = Annotated[
    str, Option(metavar="SET", help=f"{VIEWS_HELP} 'auto' chooses views that suit the classifier and the images.")
]
RISK_HELP = "Maximum error rate among accepted images, such as 0.01."
DELTA_HELP = "Failure probability of the guarantee (0.001 means 99.9 % confidence)."
SCORES_HELP = "Score files, such as 'scores/*.parquet', or a folder or URL of parts; may be repeated."
REVIEWER_ERROR_HELP = "Largest probability that a reviewer gives a wrong label."
REVIEWED_HELP = "Reviewed images: a CSV file with the columns id and label."
AUDIT_HELP = "Mark about this fraction of the accepted images for review, such as 0.01."
HOST_HELP = "Address to listen on."
VERBOSE_HELP = "Print all details."
PORT_HELP = "Port to listen on; 0 for a free one."
MAX_PIXELS_HELP = "Maximum number of pixels of an image."


def _check_methods(texts: list[str] | None) -> list[str] | None:
    """Raise an error for a method that cannot have a threshold."""
    for text in texts or ():
        name = re.split("[:?]", text, maxsplit=1)[0].strip()
        if name not in THRESHOLD_METHODS:
            known = ", ".join(method.form for method in THRESHOLD_METHODS.values())
            hint = did_you_mean(name, THRESHOLD_METHODS)
            several = " Repeat the option for several methods." if "," in name else ""
            raise ConfidenceError(f"--method {text!r} is not a method for thresholds; known: {known}.{several}{hint}")
    return texts


def _make_method_option(note: str, check: Callable[[Any], Any]) -> Any:
    names = ", ".join(method.form for method in THRESHOLD_METHODS.values())
    return Option(
        metavar="NAME",
        callback=check,
        autocompletion=lambda: list(THRESHOLD_METHODS),
        help=f"{METHOD_HELP} {note}Methods: {names}.",
        show_default="blend",
    )


ThresholdMethod = Annotated[str | None, _make_method_option("", lambda text: text and _check_methods([text]) and text)]
ThresholdMethods = Annotated[
    list[str] | None,
    _make_method_option("May be repeated: the best is kept, and all share delta. ", _check_methods),
]
Level = Annotated[float, Option(help="Confidence level of the intervals.")]
PredictFromOption = Annotated[
    PredictFrom | None,
    Option(
        help="Predict the class from the image itself, or from the mean over views.",
        show_default="image, or as in the run",
    ),
]
TopK = Annotated[
    int | None,
    Option(min=1, help="Count the label among the top k classes as correct.", show_default="1, or as in the run"),
]
Seed = Annotated[int, Option(min=0, help="Random seed.")]
AllowMismatch = Annotated[
    bool, Option("--allow-mismatch", help="Accept a classifier other than the policy's; the guarantee is lost.")
]
HeaderFromEnv = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Environment variable with an HTTP header for a remote model ('Authorization: Bearer TOKEN').",
    ),
]
BATCH_SIZE_HELP = "Images per call of the model."
BatchSize = Annotated[int | None, Option(min=1, help=BATCH_SIZE_HELP, show_default="by image size")]
Overwrite = Annotated[bool, Option("--force", help="Replace an existing file with other content.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]


def _hide_bars(wanted: bool) -> bool:
    if wanted:
        hide_hugging_face_bars()
    return wanted


def _hide_warnings(wanted: bool) -> bool:
    """Hide warnings that a run and its policy keep, but not the warning about a changed policy."""
    if wanted:
        from secondlook.diagnosis import SetupWarning

        for category in (SetupWarning, ViewWarning, CalibrationWarning):
            warnings.simplefilter("ignore", category)
    return _hide_bars(wanted)


Quiet = Annotated[bool, Option("--quiet", "-q", callback=_hide_warnings, help="Print errors only.")]
NoProgress = Annotated[bool, Option("--no-progress", callback=_hide_bars, help="Hide progress bars.")]
Device = Annotated[
    str,
    Option(
        metavar="auto|cpu|cuda[:N]",
        help="Where to run the model: auto uses GPUs if there are any, cuda uses all GPUs, cuda:N uses one.",
    ),
]


def use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the command's table of a TOML file as defaults of its options."""
    if path is None or context.resilient_parsing:
        return path
    command = context.command.name or ""
    try:
        table = tomllib.loads(read_regular_file(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SecondLookError(f"the settings file {str(path)!r} cannot be read: {error}.") from None
    if not isinstance(table.get(command), dict):
        raise SecondLookError(f"{str(path)!r} has no table [{command}]; it has: {', '.join(table) or 'nothing'}.")
    parameters = [parameter for parameter in context.command.params if parameter.name != "config"]
    by_flag = {flag.lstrip("-"): one for one in parameters for flag in one.opts if not re.fullmatch("-.", flag)}
    # Accept parameter names, too: they differ from the flags of repeatable options.
    by_name = {(one.name or "").replace("_", "-"): one for one in parameters} | by_flag
    defaults: dict[str, Any] = {}
    for name, value in table[command].items():
        found = by_name.get(name.replace("_", "-"))
        if found is None:
            known = f"{', '.join(sorted(by_flag))}.{did_you_mean(name, by_flag)}"
            raise SecondLookError(f"unknown option {name!r} under [{command}] in {str(path)!r}; known: {known}")
        defaults[found.name or ""] = _as_argument(value, repeated=found.nargs == -1 or found.multiple)
    context.default_map = defaults
    return path


def _as_argument(value: Any, *, repeated: bool) -> Any:
    """Return a TOML value as typed on the command line: numbers joined by commas, texts by spaces."""
    if repeated:
        return value if isinstance(value, list) else [value]
    if isinstance(value, list):
        return (" " if any(isinstance(one, str) for one in value) else ",").join(map(str, value))
    return value


Config = Annotated[
    Path | None,
    Option(
        "--config",
        callback=use_config,
        is_eager=True,
        metavar="FILE",
        help="TOML file with options. Options on the command line override it.",
    ),
]


@dataclass(frozen=True)
class Printing:
    """A settings file, and the output of a command."""

    config: Config = None
    as_json: Json = False
    quiet: Quiet = False
    no_progress: NoProgress = False

    @property
    def progress(self) -> bool:
        """Whether to show progress bars."""
        return not (self.quiet or self.no_progress)

    def print(self, content: Any, text: object) -> None:
        """Print the content as JSON, or the text, or nothing."""
        if self.as_json or not self.quiet:
            typer.echo(json.dumps(content) if self.as_json else escape_controls(str(text)))


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of an evaluation."""

    method: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help=f"{METHOD_HELP} May be repeated. Methods: {', '.join(method.form for method in METHODS.values())}.",
        ),
    ] = None
    metric: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Metric, such as auroc or risk_at:0.8; may be repeated. "
            f"Metrics: {', '.join(metric.form for metric in METRICS.values())}.",
        ),
    ] = None
    predict_from: PredictFromOption = None
    top_k: TopK = None
    level: Level = 0.95
    resamples: Annotated[int, Option(min=1, help="Number of bootstrap resamples for the intervals.")] = 500
    seed: Seed = 0

    def make(self) -> dict[str, Any]:
        """Return the arguments of the library that differ from their defaults."""
        plural = {"method": "methods", "metric": "metrics"}
        return {plural.get(name, name): value for name, value in asdict(self).items() if value not in (None, [])}


@dataclass(frozen=True)
class ModelOptions:
    """A classifier and its options."""

    model: Annotated[
        list[str],
        Option(
            metavar="SPEC",
            help=f"{MODEL_HELP} Schemes: {', '.join(MODELS)}.",
        ),
    ]
    output: Annotated[Output | None, Option(help="Kind of output, if the model file does not specify it.")] = None
    mean: Annotated[str | None, Option(metavar="M[,M,M]", help="Mean to subtract from pixels in [0, 1].")] = None
    std: Annotated[
        str | None,
        Option(metavar="S[,S,S]", help="Standard deviation to divide pixels by, after subtracting the mean."),
    ] = None
    resize: Annotated[
        str | None, Option(metavar="SIDE|H,W", help="Resize images to this shorter side, or to this height and width.")
    ] = None
    crop: Annotated[str | None, Option(metavar="SIDE|H,W", help="Size of the center crop, after resizing.")] = None
    model_options: Annotated[
        list[str] | None,
        Option(
            "--model-option",
            metavar="NAME=VALUE",
            help="Another option of the model, such as threads=2; may be repeated.",
        ),
    ] = None
    header_from_env: HeaderFromEnv = None

    def load(self) -> Classifier:
        """Load the classifier or ensemble; its options become part of its spec, to load it again."""
        given = {name: value for name, value in asdict(self).items() if name not in ("model", "model_options")}
        for pair in self.model_options or ():
            name, equals, value = pair.partition("=")
            if not equals:
                raise ClassifierError(f"--model-option {pair!r} is not NAME=VALUE, for example 'threads=2'.")
            given[name] = value
        texts = [add_options(spec, given) for spec in self.model]
        if len(texts) == 1:
            return load_classifier(texts[0])
        members = [load_classifier(text) for text in texts]
        return load_classifier(members, name=MEMBER_SEPARATOR.join(member.name for member in members))


def add_options(text: str, given: Mapping[str, str | None]) -> str:
    """Return the spec of a model with options added; None omits an option."""
    options = {name: value for name, value in given.items() if value is not None}
    if not options or ":" not in text:  # loading rejects a text without a scheme, with a hint
        return text
    spec, shown = parse_spec(text, ClassifierError), split_credentials(text)[0]
    for name in options.keys() & spec.options.keys():
        raise ClassifierError(f"option {name!r} is given twice, in {shown!r} and as an option; give it once.")
    return str(spec.with_options(options))


@dataclass(frozen=True)
class LocalExecution:
    """Options for running a model in this process."""

    batch_size: BatchSize = None
    device: Device = "auto"
    on_error: Annotated[OnError | None, Option(help=ON_ERROR_HELP, show_default="fail")] = None

    def make(self, progress: bool) -> Execution:
        """Return the settings of the library."""
        return Execution(self.device, self.batch_size or "auto", on_error=self.on_error, progress=progress)


@dataclass(frozen=True)
class ClusterExecution(LocalExecution):
    """Options for running a model in this process or on a cluster."""

    on_error: Annotated[OnError | None, Option(help=ON_ERROR_HELP, show_default="fail; skip with --engine ray")] = None
    engine: Annotated[Literal["local", "ray"], Option(help="Run in this process, or on a Ray cluster.")] = "local"
    address: Annotated[
        str | None,
        Option(
            metavar="HOST:PORT",
            help="Head node of the Ray cluster, or 'auto' for the cluster on this machine.",
            show_default="RAY_ADDRESS, or a new Ray on this machine",
        ),
    ] = None
    workers: Annotated[int | None, Option(min=1, help="Maximum number of workers.", show_default="as many as fit")] = (
        None
    )
    cpus_per_worker: Annotated[float | None, Option(min=0, help="CPUs per worker.", show_default="1")] = None
    gpus_per_worker: Annotated[float | None, Option(min=0, help="GPUs per worker.", show_default="0")] = None

    @contextmanager
    def open(self, progress: bool, part_size: int | None = None) -> Iterator[Execution]:
        """Yield the settings of the library, with a connected engine, which cluster options require."""
        settings = replace(self.make(progress), part_size=part_size)
        names = ("address", "workers", "cpus_per_worker", "gpus_per_worker")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.engine == "local":
            refuse({f"--{name.replace('_', '-')}": True for name in given}, "without --engine ray")
            yield settings
            return
        from secondlook.cluster import RayEngine

        with RayEngine(**given) as engine:
            yield replace(settings, engine=engine)


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise an error for the first option with a value other than None, False or an empty list."""
    for option, value in options.items():
        if value is not None and value is not False and value != []:
            raise DecisionError(f"{option} has no effect {reason}; omit it.")


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Expand parameters that are dataclasses into one parameter for each field, for typer, with readable types."""
    signature = inspect.signature(command, eval_str=True)
    groups = {name: one.annotation for name, one in signature.parameters.items() if is_dataclass(one.annotation)}
    fields = {name: inspect.signature(cast(Any, group)).parameters for name, group in groups.items()}
    expanded = [each for name, one in signature.parameters.items() for each in fields.get(name, {name: one}).values()]
    for kind, option in (get_args(each.annotation) for each in expanded):
        option.metavar = option.metavar or next((TYPES[one] for one in get_args(kind) or (kind,) if one in TYPES), None)

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = cast(Any, group)(**{field: values.pop(field) for field in fields[name]})
        command(**values)

    run.__doc__ = command.__doc__
    # Keyword-only parameters may have defaults in any order.
    run.__signature__ = signature.replace(parameters=[each.replace(kind=each.KEYWORD_ONLY) for each in expanded])  # type: ignore[attr-defined]
    return run
