"""Messages of the library name arguments; on the command line they name options."""

import ast
import pickle
import re
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
    "for arrays and images in memory": ("class_names", "image"),
    "--class-thresholds has no names of its own": ("groups",),
    "an option of a method": ("neighbors", "on", "p", "passes", "share", "statistic", "temperature"),
    "an argument of a metric, of a curve or of `judge_audits`": ("ties", "bins", "smallest"),
    "an argument of `Predictions` or of its methods": ("entry", "logits", "members", "probabilities", "rows"),
    "an argument of `Client`": ("ids", "token", "url"),
    "an argument of `Monitor`, which a service sets": ("agreeing",),
}
"""Arguments in the fields of messages that no command has, by why nobody meets them there."""

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
        ("calibrate", "groups", "class", "--class-thresholds"),
        ("calibrate", "n_images", 10, "--shift-images 10"),
        ("check", "n_images", 10, "--limit 10"),
        ("calibrate", "max_looks", 1, "--max-looks 1"),
        ("views candidates", "image_size", ANY, "--image-size"),
        ("calibrate", "serve.audit", 0.05, "secondlook serve --audit 0.05"),
        ("calibrate", "score.audit", ANY, "secondlook score --audit"),
        ("score", "policy.bind(.classifier", ANY, "--model"),
        ("evaluate", "load_classifier(function, .name", "v1", "--model-option name=v1"),
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


def test_a_repair_by_another_call_and_an_alternative_are_worded_for_both_front_ends() -> None:
    repair = Repair("use {name}", of="load_classifier(function, ", name="v1")
    error = DecisionError("it has no name", repair=repair.otherwise("use {allow_mismatch}", allow_mismatch=True))
    assert str(error) == "it has no name; use load_classifier(function, name='v1'), or use allow_mismatch=True."
    assert word(error, find_flags(["score"])) == "it has no name; use ?name=v1, or use --allow-mismatch."
    assert list(repair.arguments) == ["name"]


def test_an_error_raised_again_keeps_its_fields() -> None:
    error = DecisionError.from_error(SecondLookError("is wrong", argument="level", value=2), "in 'a.csv', ")
    again = pickle.loads(pickle.dumps(DecisionError.from_error(error, "again: ")))
    assert str(again) == "again: in 'a.csv', level=2 is wrong."
    assert word(again, find_flags(["score"])) == "again: in 'a.csv', --level 2 is wrong."
    assert str(DecisionError.from_error(SecondLookError("it is wrong."), "in 'a.csv', ")) == "in 'a.csv', it is wrong."


def test_every_argument_in_a_field_has_an_option() -> None:
    known = {"of", *PARAMETER_OF_ARGUMENT, *WITHOUT_OPTION, *model_options(), *source_options()}
    known = known.union(*PYTHON_ONLY.values())
    for name in COMMANDS:
        for other in getattr(load_command(name), "commands", [""]):
            known |= set(find_flags(f"{name} {other}".split()))
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            is_repair = isinstance(call.func, ast.Name) and call.func.id == "Repair"
            for one in call.keywords:
                value = one.value.value if isinstance(one.value, ast.Constant) else None
                argument = one.arg if is_repair else value if one.arg == "argument" else None
                if isinstance(argument, str):
                    found.append((f"{path.relative_to(PACKAGE)}:{call.lineno}", argument))
    assert found
    assert [(place, name) for place, name in found if name not in known] == [], "add it to a table of wording.py"


def test_listed_models_name_options_of_specs(here: Here) -> None:
    listed = " ".join(here("list", "models").out.split())
    assert "?output= is required" in listed
    assert "?weights=FILE" in listed
    assert not ARGUMENT.search(listed), listed


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


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("evaluate", ["methods", "metrics", "presets", "models", "sources"]),
        ("compare", ["methods", "metrics"]),
        ("calibrate", ["threshold methods"]),
        ("label", ["threshold methods", "presets", "models", "sources"]),
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
        "threshold methods": [record.form for record in METHODS.values() if not record.is_rank],
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
