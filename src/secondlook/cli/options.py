"""Options that several commands share, settings files, and models as the command line names them."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from secondlook.arrays import Output
from secondlook.classifiers import MODELS, check_device
from secondlook.errors import ClassifierError, DecisionError, SecondLookError
from secondlook.estimators import METHODS
from secondlook.metrics import METRICS
from secondlook.predictions import PredictFrom
from secondlook.progress import hide_hugging_face_bars
from secondlook.registry import did_you_mean
from secondlook.sources import SOURCES, OnError
from secondlook.specs import MEMBER_SEPARATOR, parse_spec
from secondlook.views import PRESETS

if TYPE_CHECKING:
    from secondlook.classifiers import Classifier
    from secondlook.predictions import Engine

Models = Annotated[
    list[str],
    typer.Option(
        "--model",
        metavar="SPEC",
        help=f"Classifier, such as onnx:model.onnx; repeat for an ensemble. Schemes: {', '.join(MODELS)}.",
    ),
]
OutputOption = Annotated[
    Output | None, typer.Option("--output", help="What the model outputs, where its file does not tell.")
]
Mean = Annotated[str | None, typer.Option(metavar="M[,M,M]", help="Mean to subtract from pixels in [0, 1].")]
Std = Annotated[str | None, typer.Option(metavar="S[,S,S]", help="Standard deviation to divide by.")]
Resize = Annotated[
    str | None, typer.Option(metavar="SIDE|H,W", help="Resize to this shorter side, or to height and width.")
]
Crop = Annotated[str | None, typer.Option(metavar="SIDE|H,W", help="Size of the center crop after resizing.")]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option("--model-option", metavar="NAME=VALUE", help="Any other option of the model, such as threads=2."),
]
HeaderFromEnv = Annotated[
    str | None,
    typer.Option(
        "--header-from-env",
        metavar="NAME",
        help="Environment variable with an HTTP header for a remote model, such as 'Authorization: Bearer TOKEN'.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data", metavar="SPEC", help=f"Images, such as folder:DIR or npz:FILE. Schemes: {', '.join(SOURCES)}."
    ),
]
VIEWS_HELP = f"Preset, views in quotes, or a .txt file of views. Presets: {', '.join(PRESETS)}."
AUTO_HELP = f"'auto' chooses views that suit the classifier and the images. {VIEWS_HELP}"
METHODS_HELP = ", ".join(method.form for method in METHODS.values())
METRICS_HELP = ", ".join(metric.form for metric in METRICS.values())
Views = Annotated[str, typer.Option("--views", metavar="SET", help=AUTO_HELP)]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Confidence method, with options as in 'max-logit-pnorm?p=3&on=views'; may be repeated. "
        f"Methods: {METHODS_HELP}.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help=f"Metric; may be repeated. Metrics: {METRICS_HELP}."),
]
Level = Annotated[float, typer.Option(help="Confidence level of the intervals.")]
Resamples = Annotated[int, typer.Option(min=1, help="Number of bootstrap resamples of the images for the intervals.")]
PredictFromOption = Annotated[
    PredictFrom,
    typer.Option("--predict-from", help="Predict the class from the image itself or from the mean over views."),
]
PredictFromOfRun = Annotated[
    PredictFrom | None,
    typer.Option(
        "--predict-from",
        help="Predict the class from the image itself or from the mean over views.",
        show_default="as in the run",
    ),
]
TopK = Annotated[
    int, typer.Option("--top-k", min=1, help="Count a prediction as correct if the label is among the top k classes.")
]
TopKOfRun = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        min=1,
        help="Count a prediction as correct if the label is among the top k classes.",
        show_default="as in the run",
    ),
]
Delta = Annotated[float, typer.Option(help="Failure probability of the guarantee (0.001 means 99.9 % confidence).")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Images per call of the model.", show_default="chosen by image size")
]
OnErrorOption = Annotated[OnError, typer.Option("--on-error", help="Fail on an unreadable image, or skip and list it.")]
OnErrorOfEngine = Annotated[
    OnError | None,
    typer.Option(
        "--on-error",
        help="Fail on an unreadable image, or skip and list it.",
        show_default="fail; skip with --engine ray",
    ),
]
EngineName = Annotated[
    Literal["local", "ray"], typer.Option("--engine", help="Compute in this process, or on a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Head node of the Ray cluster, or 'auto' for the cluster of this machine.",
        show_default="RAY_ADDRESS, or a Ray that is started on this machine",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Maximum number of workers.", show_default="as many as the cluster holds"),
]
CpusPerWorker = Annotated[
    float | None, typer.Option("--cpus-per-worker", min=0, help="CPUs per worker.", show_default="1")
]
GpusPerWorker = Annotated[
    float | None, typer.Option("--gpus-per-worker", min=0, help="GPUs per worker.", show_default="0")
]
PartSize = Annotated[
    int | None,
    typer.Option("--part-size", min=1, help="Images per chunk.", show_default="by image size; 1000 with --engine ray"),
]
Overwrite = Annotated[bool, typer.Option("--force", help="Replace an existing file that has other content.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def choose_on_error(on_error: OnError) -> OnError | None:
    """Return what to pass on: the spec of a source may set it as well, so only a choice other than the default."""
    return None if on_error == "fail" else on_error


def require_partner(given: Mapping[str, object], partner: str, partner_value: object) -> None:
    """Raise an error for an option that was given (neither None nor False) without the one that it belongs to."""
    for option, value in given.items():
        if value is not None and value is not False and not partner_value:
            raise DecisionError(f"{option} has no effect without {partner}; add {partner} or omit {option}.")


@contextmanager
def open_engine(
    engine: str,
    address: str | None,
    workers: int | None,
    cpus_per_worker: float | None,
    gpus_per_worker: float | None,
    part_size: int | None = None,
) -> "Iterator[Engine | None]":
    """Yield the engine of a command; None to compute in this process. Options of a cluster need one."""
    of_cluster = {
        "address": address,
        "workers": workers,
        "cpus_per_worker": cpus_per_worker,
        "gpus_per_worker": gpus_per_worker,
    }
    if engine == "local":
        require_partner(
            {f"--{name.replace('_', '-')}": value for name, value in of_cluster.items()}, "--engine ray", None
        )
        yield None
        return
    from secondlook.cluster import RayEngine

    settings: dict[str, Any] = {**of_cluster, "part_size": part_size}
    with RayEngine(**{name: value for name, value in settings.items() if value is not None}) as opened:
        yield opened


def _hide_bars(wanted: bool) -> bool:
    if wanted:
        hide_hugging_face_bars()
    return wanted


Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=_hide_bars, help="Print errors only.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", callback=_hide_bars, help="Hide progress bars.")]


def _check_device(device: str) -> str:
    check_device(device)
    return device


Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda[:N]",
        callback=_check_device,
        help="Where to run the model: auto uses GPUs if it can, cuda all GPUs, cuda:N one of them.",
    ),
]


def load_models(
    specs: list[str],
    *,
    output: str | None = None,
    mean: str | None = None,
    std: str | None = None,
    resize: str | None = None,
    crop: str | None = None,
    model_options: list[str] | None = None,
    header_from_env: str | None = None,
) -> "Classifier":
    """Load a classifier, or an ensemble; options become part of its spec, so that it can be loaded again from there."""
    from secondlook.classifiers import load_classifier

    preprocessing = {"mean": mean, "std": std, "resize": resize, "crop": crop}
    named = {"output": output, **preprocessing, "header_from_env": header_from_env}
    options = {**named, **_parse_pairs(model_options or [])}
    texts = [add_options(spec, options) for spec in specs]
    if len(texts) == 1:
        return load_classifier(texts[0])
    members = [load_classifier(text) for text in texts]
    return load_classifier(members, name=MEMBER_SEPARATOR.join(member.name for member in members))


def _parse_pairs(pairs: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ClassifierError(f"--model-option {pair!r} is not NAME=VALUE, such as 'threads=2'.")
        options[name] = value
    return options


def add_options(text: str, given: Mapping[str, str | None]) -> str:
    """Return the spec of a model with options that were given beside it; those that are None were not."""
    options = {name: value for name, value in given.items() if value is not None}
    if not options or ":" not in text:  # a text without a scheme is rejected with a hint when it is loaded
        return text
    from secondlook.classifiers import split_credentials

    spec, shown = parse_spec(text, ClassifierError), split_credentials(text)[0]
    for name in options.keys() & spec.options.keys():
        raise ClassifierError(f"option {name!r} is given twice, in {shown!r} and as an option; give it once.")
    return str(spec.with_options(options))


def use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the command's table of a TOML file as defaults of its options."""
    if path is None or context.resilient_parsing:
        return path
    command = context.command.name or ""
    table = _read_toml(path)
    if not isinstance(table.get(command), dict):
        raise SecondLookError(
            f"{str(path)!r} has no table [{command}]; it has: {', '.join(table) or 'nothing'}. "
            f"Options of this command go under [{command}]."
        )
    parameters = [parameter for parameter in context.command.params if parameter.name != "config"]
    by_flag = {flag.lstrip("-"): one for one in parameters for flag in one.opts if not re.fullmatch("-.", flag)}
    # Parameter names are accepted too: they differ from the flags of options that can be repeated.
    by_name = {(one.name or "").replace("_", "-"): one for one in parameters} | by_flag
    defaults: dict[str, Any] = {}
    for name, value in table[command].items():
        found = by_name.get(name.replace("_", "-"))
        if found is None:
            raise SecondLookError(
                f"unknown option {name!r} under [{command}] in {str(path)!r}; known: "
                f"{', '.join(sorted(by_flag))}.{did_you_mean(name, by_flag)}"
            )
        defaults[found.name or ""] = _as_argument(value, repeated=found.nargs == -1 or found.multiple)
    context.default_map = defaults
    return path


def _as_argument(value: Any, *, repeated: bool) -> Any:
    """Return a TOML value as it would be typed: numbers of one option joined by commas, texts by spaces."""
    if repeated:
        return value if isinstance(value, list) else [value]
    if not isinstance(value, list):
        return value
    separator = " " if any(isinstance(one, str) for one in value) else ","
    return separator.join(str(one) for one in value)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SecondLookError(f"the settings file {str(path)!r} cannot be read: {error}.") from None


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=use_config,
        is_eager=True,
        metavar="FILE",
        help="TOML file of options; options on the command line override it.",
    ),
]
