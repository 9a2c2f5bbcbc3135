"""Messages of the library name arguments; on the command line they name options."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import secondlook as sl
from secondlook.cli.app import COMMANDS, find_flags, load_command
from secondlook.cli.wording import (
    PARAMETER_OF_ARGUMENT,
    WITHOUT_OPTION,
    model_options,
    name_option,
    source_options,
    word,
)
from secondlook.errors import ANY, DecisionError, Repair, SecondLookError, SecondLookWarning
from tests.cli.conftest import Here

PACKAGE = Path(sl.__file__).parent
PYTHON_ONLY = {
    "bins": "an argument of a curve",
    "class_names": "for arrays and images in memory",
    "entry": "an argument of `Predictions.open`",
    "groups": "--per-class has no names of its own",
    "ids": "for images that `Client` sends",
    "image": "for images in memory",
    "logits": "an argument of `Predictions`",
    "members": "an argument of `Predictions`",
    "neighbors": "an option of a method",
    "on": "an option of a method",
    "p": "an option of a method",
    "passes": "an option of a method",
    "probabilities": "an argument of `Predictions`",
    "rows": "an argument of `Predictions.blocks`",
    "smallest": "an argument of `judge_audits`",
    "statistic": "an option of a method",
    "temperature": "an option of a method",
    "ties": "an argument of a metric",
    "token": "an argument of `Client`",
    "url": "an argument of `Client`",
}
"""Arguments in the fields of messages that no command has, and why nobody meets them there."""

ARGUMENT = re.compile(r"(?<![\w?&.<-])(?<!--model-option )(?P<name>[a-z][a-z_]*)=(?![=\"])")


@pytest.mark.parametrize(
    ("command", "name", "value", "expected"),
    [
        ("score", "allow_mismatch", True, "--allow-mismatch"),
        ("score", "overwrite", True, "--force"),
        ("score", "export_all", False, "no --export-all"),
        ("score", "device", "cuda:1", "--device cuda:1"),
        ("info", "device", "cpu", "?device=cpu"),
        ("score", "classifier", ANY, "--model"),
        ("score", "output", "logits", "?output=logits"),
        ("evaluate", "output", "logits", "--output logits"),
        ("evaluate", "on_error", "skip", "--on-error skip"),
        ("evaluate", "mean", (0.5, 0.4, 0.3), "--mean 0.5,0.4,0.3"),
        ("evaluate", "layout", "NCHW", "--model-option layout=NCHW"),
        ("evaluate", "timeout", ANY, "--model-option timeout=VALUE"),
        ("evaluate", "subset", "evaluation", "?subset=evaluation"),
        ("evaluate", "labels", ANY, "labeled images"),
        ("evaluate", "store", ANY, "--out"),
        ("evaluate", "views", "identity hflip", "--views 'identity hflip'"),
        ("info", "trust_pickle", True, "?trust_pickle=true"),
        ("calibrate", "risk", 2.0, "--risk 2.0"),
        ("calibrate", "risk", {"cat": 0.1}, "--class-risk"),
        ("calibrate", "groups", "class", "--per-class"),
        ("calibrate", "n_images", 10, "--shift-images 10"),
        ("check", "n_images", 10, "--images 10"),
        ("calibrate", "max_looks", 1, "--max-looks 1"),
        ("views candidates", "image_size", ANY, "--image-size"),
        ("calibrate", "serve.audit", 0.05, "secondlook serve --audit 0.05"),
        ("calibrate", "score.audit", ANY, "secondlook score --audit"),
        ("calibrate", "views", ANY, "secondlook evaluate --views"),
        ("score", "image_shape", ANY, "secondlook export --image-shape"),
        ("verify", "allow_mismatch", True, "secondlook score --allow-mismatch"),
        ("", "whatever", ANY, "whatever="),
    ],
)
def test_arguments_are_options_of_the_command(command: str, name: str, value: object, expected: str) -> None:
    assert name_option(find_flags(command.split()), name, value) == expected


@pytest.mark.parametrize("kind", [DecisionError, SecondLookWarning])
def test_messages_with_fields_name_options(kind: type[DecisionError | SecondLookWarning]) -> None:
    repair = Repair("pass {overwrite} or {classifier}, not 'level=2'", overwrite=True, classifier=ANY)
    message = kind("is wrong", argument="level", value=2, repair=repair)
    assert str(message) == "level=2 is wrong; pass overwrite=True or classifier=, not 'level=2'."
    assert word(message, find_flags(["score"])) == "--level 2 is wrong; pass --force or --model, not 'level=2'."


def test_an_error_raised_again_keeps_its_fields() -> None:
    error = DecisionError.from_error(SecondLookError("is wrong", argument="level", value=2), "in 'a.csv', ")
    again = pickle.loads(pickle.dumps(DecisionError.from_error(error, "again: ")))
    assert str(again) == "again: in 'a.csv', level=2 is wrong."
    assert word(again, find_flags(["score"])) == "again: in 'a.csv', --level 2 is wrong."
    assert str(DecisionError.from_error(SecondLookError("it is wrong."), "in 'a.csv', ")) == "in 'a.csv', it is wrong."


def arguments_in_fields() -> Iterator[tuple[str, str]]:
    """Yield the place and the name of every argument that a message of the library has in its fields."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            is_repair = isinstance(node.func, ast.Name) and node.func.id == "Repair"
            for one in node.keywords:
                value = one.value.value if isinstance(one.value, ast.Constant) else None
                name = one.arg if is_repair else value if one.arg == "argument" else None
                if isinstance(name, str) and name != "of":
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", name


def test_every_argument_in_a_field_has_an_option() -> None:
    known = {name for words in list_commands() for name in find_flags(words)}
    known |= {*PARAMETER_OF_ARGUMENT, *WITHOUT_OPTION, *model_options(), *source_options(), *PYTHON_ONLY}
    found = list(arguments_in_fields())
    assert found
    assert [(place, name) for place, name in found if name not in known] == [], "add it to a table of wording.py"


def list_commands() -> Iterator[list[str]]:
    """Yield the words of every command, such as ["views", "show"]."""
    for name in COMMANDS:
        for other in getattr(load_command(name), "commands", [""]):
            yield f"{name} {other}".split()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("evaluate --model onnx:model.onnx --data folder:new --out run", "or labeled images"),
        ("evaluate --model onnx:model.onnx?layout=NHWC --data folder:val --out run", "--model-option layout"),
        ("evaluate --model sklearn:model.onnx --data folder:val --out run", "--model-option trust_pickle=true"),
        ("views candidates -n 1", "--number 1"),
        ("info sklearn:model.onnx", "?trust_pickle=true"),
    ],
)
def test_commands_print_options_and_no_python(here: Here, arguments: str, told: str) -> None:
    done = here.refuse(*arguments.split(), told=told)
    own = re.sub(r"'[^']*'", "", done.err)
    assert not [match[0] for match in ARGUMENT.finditer(own)], done.err


def test_listed_models_name_options_of_specs(here: Here) -> None:
    listed = " ".join(here("list", "models").out.split())
    assert "?output= is required" in listed
    assert "?weights=FILE" in listed
    assert not ARGUMENT.search(listed), listed


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("evaluate", ["methods", "metrics", "presets", "models", "sources"]),
        ("compare", ["methods", "metrics"]),
        ("calibrate", ["methods"]),
        ("score", ["sources"]),
        ("views show", ["presets"]),
        ("list", ["kinds"]),
    ],
)
def test_help_lists_the_choices(here: Here, monkeypatch: pytest.MonkeyPatch, command: str, kinds: list[str]) -> None:
    from secondlook.classifiers import MODELS
    from secondlook.estimators import METHODS
    from secondlook.metrics import METRICS
    from secondlook.sources import SOURCES
    from secondlook.views import PRESETS

    choices = {
        "methods": [record.form for record in METHODS.values()],
        "metrics": [record.form for record in METRICS.values()],
        "presets": list(PRESETS),
        "models": list(MODELS),
        # Other tests import the reproduction, which registers more.
        "sources": [name for name, scheme in SOURCES.items() if scheme.open.__module__.startswith("secondlook.")],
        "kinds": ["methods", "metrics", "views", "models", "sources", "exports"],
    }
    monkeypatch.setenv("COLUMNS", "400")
    words = set(re.findall(r"[\w:-]+", here(*command.split(), "--help").out))
    for kind in kinds:
        assert set(choices[kind]) <= words, kind
