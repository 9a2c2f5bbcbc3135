"""Loading: texts, objects, options, and the registry of schemes."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from secondlook.classifiers import MODELS, Classifier, Ensemble, Preprocessing, load_classifier, model_scheme
from secondlook.errors import ClassifierError
from secondlook.specs import short_name

Array = np.ndarray[Any, Any]


def halves(images: Array) -> Array:
    return np.full((len(images), 2), 0.5)


def test_every_scheme_says_its_form_and_what_it_is() -> None:
    assert set(MODELS) == {"onnx", "torch", "sklearn", "hf", "timm", "torchvision", "http", "https", "function"}
    for name, scheme in MODELS.items():
        assert scheme.name == name
        assert scheme.form.startswith(f"{name}:")
        assert "\n" not in scheme.says


def test_a_second_registration_is_an_error() -> None:
    with pytest.raises(ClassifierError, match="scheme 'onnx' is registered already"):
        model_scheme("onnx", form="onnx:X", says="again")(lambda target, statement: target)


def test_a_function_gives_probabilities_unless_stated(images: Array) -> None:
    classifier = load_classifier(halves)
    assert classifier.output == "probabilities"
    assert classifier.n_classes is None
    assert classifier(images).dtype == np.float32
    assert classifier.n_classes == 2
    assert classifier.name == "function halves"


def test_a_function_gets_the_pixels_as_they_are(images: Array) -> None:
    seen = []

    def watching(batch: Array) -> Array:
        seen.append(batch)
        return halves(batch)

    load_classifier(watching)(images)
    assert seen[0] is images


def test_a_function_has_an_identity_only_by_name() -> None:
    assert load_classifier(halves).digest == ""
    named = load_classifier(halves, name="halves of v1")
    assert len(named.digest) == 64
    assert named.digest != load_classifier(halves, name="halves of v2").digest


def test_a_function_may_give_a_tensor(images: Array) -> None:
    torch = pytest.importorskip("torch")
    classifier = load_classifier(lambda batch: torch.full((len(batch), 2), 0.5, requires_grad=True))
    assert classifier(images).tolist() == [[0.5, 0.5]] * len(images)


def test_a_function_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Array) -> None:
    (tmp_path / "my_scores.py").write_text("def answer(images):\n    return [[0.25, 0.75]] * len(images)\nnumber = 1\n")
    monkeypatch.chdir(tmp_path)
    classifier = load_classifier("function:my_scores:answer?name=mine")
    assert classifier(images)[0].tolist() == [0.25, 0.75]
    assert classifier.name == "function:my_scores:answer?name=mine"
    assert load_classifier(classifier.name).digest == classifier.digest != ""
    renamed = load_classifier("function:my_scores:answer", name="mine")
    assert (renamed.name, renamed.digest) == ("mine", classifier.digest)
    with pytest.raises(ClassifierError, match="names 1, which cannot be called"):
        load_classifier("function:my_scores:number")
    with pytest.raises(ClassifierError, match=r"module 'my_scores' of .* has no 'anser'"):
        load_classifier("function:my_scores:anser")
    with pytest.raises(ClassifierError, match="needs the module 'no_such_module_here'"):
        load_classifier("function:no_such_module_here:answer")
    with pytest.raises(ClassifierError, match=r"must name a module and what to take from it: package\.module:name"):
        load_classifier("function:my_scores")
    assert str(tmp_path) not in sys.path


def test_a_function_refuses_normalization() -> None:
    with pytest.raises(ClassifierError, match=r"mean= has no effect .* normalize inside the function"):
        load_classifier(halves, mean=(0.5,))
    assert load_classifier(halves, resize=8, crop=8).preprocessing.input_size == (8, 8)


def test_a_function_that_changes_its_classes_is_caught(images: Array) -> None:
    classifier = load_classifier(lambda batch: np.full((len(batch), len(batch)), 1 / len(batch)))
    classifier(images)
    with pytest.raises(ClassifierError, match="answered 2 classes, but has 7"):
        classifier(images[:2])


def test_a_classifier_comes_back_as_it_is() -> None:
    classifier = load_classifier(halves)
    assert load_classifier(classifier) is classifier
    with pytest.raises(ClassifierError, match="is loaded already, so resize= comes too late"):
        load_classifier(classifier, resize=3)


def test_a_list_is_an_ensemble() -> None:
    assert isinstance(load_classifier([halves, halves], name="both"), Ensemble)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet20.onnx", "does not name a classifier; known forms: .*onnx:FILE, .*Did you mean 'onnx:resnet20.onnx'?"),
        ("model.pt2", "Did you mean 'torch:model.pt2'"),
        ("onxx:m.onnx", "Did you mean 'onnx'?"),
        ("", "does not name a classifier"),
        ("onnx:no-such.onnx?output=logits", r"names the file 'no-such\.onnx', which does not exist"),
        ("onnx:m.onnx?output=logit", "output='logit' is unknown; state output='logits' or output='probabilities'"),
        ("onnx:m.onnx?outputs=logits", "unknown option 'outputs' for .* Did you mean 'output'"),
        ("onnx:m.onnx?output", "'output' in .* is not one option=value"),
        ("onnx:m.onnx?mean=1&mean=2", "'mean=2' in .* is not one option=value of its own"),
        (Path("m.onnx"), "is not a classifier.* such as 'onnx:m.onnx'"),
        (42, "builtins.int is not a classifier: it can neither be called on a batch nor has it predict_proba"),
    ],
)
def test_what_names_no_classifier_says_how_to(spec: object, message: str) -> None:
    with pytest.raises(ClassifierError, match=message):
        load_classifier(spec)


@pytest.mark.parametrize(
    ("spec", "option", "expected"),
    [
        ("onnx:m.onnx?threads=x", "threads='x'", "a whole number"),
        ("onnx:m.onnx?threads=1.5", "threads=1.5", "a whole number"),
        ("onnx:m.onnx?threads=true", "threads=True", "a whole number"),
        ("onnx:m.onnx?preprocessing=x", "preprocessing='x'", "a Preprocessing, which goes with a call and not with"),
        ("http://localhost:1/v2/models/m?retries=x", "retries='x'", "a whole number"),
        ("http://localhost:1/v2/models/m?timeout=x", "timeout='x'", "a finite number"),
        ("http://localhost:1/v2/models/m?timeout=nan", "timeout=nan", "a finite number"),
        ("http://localhost:1/v2/models/m?binary=perhaps", "binary='perhaps'", "true or false"),
        ("http://localhost:1/v2/models/m?headers=x", "headers='x'", "a mapping"),
        ("sklearn:m.pkl?trust_pickle=maybe", "trust_pickle='maybe'", "true or false"),
    ],
)
def test_an_option_of_another_type_is_said(spec: str, option: str, expected: str) -> None:
    with pytest.raises(ClassifierError) as raised:
        load_classifier(spec, output="logits")
    sentence = f"option {option} of {spec!r} has a value of another kind; expected {expected}"
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"providers": 3}, "option providers=3 of 'onnx:m.onnx' .*; expected a text or a list"),
        ({"output_name": 3}, "option output_name=3 of .*; expected a text"),
        ({"threads": "2"}, "option threads='2' of .*; expected a whole number"),
        ({"name": 3}, "option name=3 of .*; expected a text"),
        ({"output": 3}, "output=3 is unknown; state output='logits'"),
    ],
)
def test_an_argument_of_another_type_is_said(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ClassifierError, match=expected):
        load_classifier("onnx:m.onnx", **options)


def test_values_of_every_type_reach_the_opener(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def opener(
        target: object,
        statement: object,
        *,
        yes: bool = False,
        number: float = 0,
        count: Optional[int] = None,  # noqa: UP045  # as people's own openers may write it
        file: str | None = None,
        anything: Any = None,
        others: "Array | None" = None,
    ) -> Classifier:
        seen.update(yes=yes, number=number, count=count, file=file, anything=anything, others=others)
        return load_classifier(halves)

    scheme = dataclasses.replace(MODELS["onnx"], name="mine", form="mine:X", open=opener)
    monkeypatch.setitem(MODELS, "mine", scheme)
    load_classifier("mine:x?yes=1&number=2&count=3&file=4&anything=5&others=a,6")
    assert seen == {"yes": True, "number": 2, "count": 3, "file": "4", "anything": 5, "others": ("a", 6)}
    load_classifier("mine:x", number=np.float32(0.5), count=np.int64(7), file=Path("w.pt"), anything=[8])
    assert seen["file"] == Path("w.pt")
    assert (seen["number"], seen["count"], seen["anything"]) == (0.5, 7, [8])
    for off in ("no", "NO", "0", "false"):
        load_classifier(f"mine:x?yes={off}")
        assert seen["yes"] is False
    with pytest.raises(ClassifierError, match=r"option count='x' of .* expected a whole number"):
        load_classifier("mine:x?count=x")


def test_an_option_given_twice_is_an_error() -> None:
    with pytest.raises(ClassifierError, match="output= is given twice"):
        load_classifier("onnx:m.onnx?output=logits", output="logits")


def test_options_in_a_text_are_those_of_the_call(make_onnx: Any, network: Any, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    text = f"onnx:{file}?output=logits&mean=.485,.456,.406&std=0.5&resize=9&crop=8,8&threads=1&name=a%20name"
    by_text = load_classifier(text)
    by_call = load_classifier(
        f"onnx:{file}", output="logits", mean=(0.485, 0.456, 0.406), std=0.5, resize=9, crop=(8, 8), threads=1
    )
    assert by_text.preprocessing == by_call.preprocessing
    assert by_text.digest == by_call.digest
    assert by_text.name == text
    assert short_name(by_text.name) == "a name"
    whole = load_classifier(f"onnx:{file}", output="logits", preprocessing=by_call.preprocessing)
    assert whole.preprocessing == by_call.preprocessing
    replaced = load_classifier(text, preprocessing=Preprocessing(gray="repeat"))
    assert replaced.preprocessing == dataclasses.replace(by_call.preprocessing, gray="repeat")


@pytest.mark.parametrize(
    "batch",
    [
        np.zeros((2, 8, 8), np.uint8),
        np.zeros((2, 8, 8, 4), np.uint8),
        np.zeros((2, 8, 8, 3), np.float64),
        np.zeros((0, 8, 8, 3), np.uint8),
    ],
)
def test_a_batch_of_another_kind_is_said(batch: Array) -> None:
    with pytest.raises(ClassifierError, match=r"takes uint8 or float32|without images"):
        load_classifier(halves)(batch)


def test_a_subclass_needs_only_an_answer(images: Array) -> None:
    class Halves(Classifier):
        def answer(self, images: Array) -> Array:
            return halves(images)

    mine = Halves(name="mine", digest="0" * 64, output="probabilities", preprocessing=Preprocessing())
    assert load_classifier(mine)(images).shape == (7, 2)
    assert repr(mine).startswith("Halves('mine', output='probabilities'")
    with pytest.raises(ClassifierError, match="output='scores' of classifier 'mine' is unknown"):
        Halves(name="mine", digest="", output="scores", preprocessing=Preprocessing())  # type: ignore[arg-type]


def test_importing_the_room_loads_nothing_heavy() -> None:
    heavy = ["torch", "numba", "cv2", "onnxruntime", "pyarrow", "sklearn", "plotly", "ray", "transformers", "gevent"]
    code = f"import sys, secondlook.classifiers; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
