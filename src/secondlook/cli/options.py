"""Options that several commands share, and how models are named on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from secondlook.errors import ClassifierError
from secondlook.specs import MEMBER_SEPARATOR

if TYPE_CHECKING:
    from secondlook.classifiers import Classifier

Models = Annotated[
    list[str],
    typer.Option("--model", metavar="SPEC", help="The classifier, such as onnx:model.onnx; several make an ensemble."),
]
Output = Annotated[
    str | None, typer.Option(help="What the model answers: logits or probabilities, where the file does not say it.")
]
Mean = Annotated[str | None, typer.Option(metavar="M[,M,M]", help="Subtracted from pixels in [0, 1].")]
Std = Annotated[str | None, typer.Option(metavar="S[,S,S]", help="Divides what is left.")]
Resize = Annotated[
    str | None, typer.Option(metavar="SIDE|H,W", help="Shorter side, or height and width, before the crop.")
]
Crop = Annotated[str | None, typer.Option(metavar="SIDE|H,W", help="Center crop.")]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option("--model-option", metavar="NAME=VALUE", help="Any other option of the model, such as threads=2."),
]
Data = Annotated[
    str, typer.Option("--data", metavar="SPEC", help="The images: folder:DIR, npz:FILE, csv:FILE, hf:NAME, ...")
]
Views = Annotated[str, typer.Option("--views", metavar="SET", help="A preset, views in quotes, or a .txt file.")]
Methods = Annotated[
    list[str] | None, typer.Option("--method", metavar="NAME", help="A confidence; several may be given.")
]
Metrics = Annotated[list[str] | None, typer.Option("--metric", metavar="NAME", help="A metric; several may be given.")]
Level = Annotated[float, typer.Option(help="Of the intervals.")]
Resamples = Annotated[int, typer.Option(min=1, help="Resamplings of the images for the intervals.")]
PredictFrom = Annotated[
    str, typer.Option("--predict-from", help="Take the class from the image itself (x) or the mean over views (D).")
]
ByOfRun = Annotated[
    str | None,
    typer.Option(
        "--predict-from", help="Class from the image itself (x) or the mean over views (D); as the run unless said."
    ),
]
TopK = Annotated[int, typer.Option("--top-k", min=1, help="How many leading classes count as the answer.")]
TopKOfRun = Annotated[
    int | None,
    typer.Option("--top-k", min=1, help="How many leading classes count as the answer; as the run unless said."),
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images per call of the model; chosen by size unless said.")]
OnError = Annotated[str, typer.Option(help="An image that cannot be read: fail, or skip it and list it.")]
Json = Annotated[bool, typer.Option("--json", help="Print for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Draw no progress bar.")]


def load_models(
    models: list[str],
    *,
    output: str | None = None,
    mean: str | None = None,
    std: str | None = None,
    resize: str | None = None,
    crop: str | None = None,
    model_options: list[str] | None = None,
) -> "Classifier":
    """Load a classifier, or an ensemble, with its options written into its text: it can be loaded again from there."""
    from secondlook.classifiers import load_classifier

    named = {"output": output, "mean": mean, "std": std, "resize": resize, "crop": crop}
    given = [f"{name}={quote(value, safe=',/:')}" for name, value in named.items() if value is not None]
    for option in model_options or []:
        if "=" not in option:
            raise ClassifierError(f"--model-option {option!r} is not NAME=VALUE, such as threads=2.")
        given.append(option)
    texts = [_with_options(model, given) for model in models]
    if len(texts) == 1:
        return load_classifier(texts[0])
    return load_classifier([load_classifier(text) for text in texts], name=MEMBER_SEPARATOR.join(texts))


def _with_options(model: str, given: list[str]) -> str:
    if not given:
        return model
    return f"{model}{'&' if '?' in model else '?'}{'&'.join(given)}"


def answer_text(predict_from: str, top_k: int) -> str:
    """Return what counts as the answer, in the words of an evaluation."""
    return f"class by {predict_from}" if top_k == 1 else f"{top_k} leading classes by {predict_from}"


def path_in(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder that is made where it is missing."""
    from secondlook.errors import ReportError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"folder {str(folder)!r} cannot be made: {error.strerror}; choose another --out.") from None
    return folder / name
