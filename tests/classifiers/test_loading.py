"""Loading: specs, objects, options, and the registry of model schemes."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import MODELS, Classifier, Ensemble, Preprocessing, load_classifier, model_scheme
from secondlook.errors import ClassifierError
from secondlook.specs import short_name


def halves(images: Array) -> Array:
    return np.full((len(images), 2), 0.5)


def test_every_scheme_has_a_form_and_a_summary() -> None:
    assert set(MODELS) == {"onnx", "torch", "sklearn", "hf", "timm", "torchvision", "http", "https", "function"}
    for name, scheme in MODELS.items():
        assert scheme.name == name
        assert scheme.form.startswith(f"{name}:")
        assert scheme.summary
        assert "\n" not in scheme.summary
    assert [row["name"] for row in MODELS.to_rows() if row["is_data_only"]] == ["onnx"]
    with pytest.raises(ClassifierError, match="'onnx'"):
        model_scheme("onnx", form="onnx:X", summary="again")(lambda target, options: target)


@pytest.mark.parametrize(
    ("spec", "offending"),
    [
        ("resnet20.onnx", "Did you mean 'onnx:resnet20.onnx'?"),
        ("resnet20.onnx?output=logits", "Did you mean 'onnx:resnet20.onnx?output=logits'?"),
        ("model.pt2", "Did you mean 'torch:model.pt2'?"),
        ("resnet20", "onnx:FILE"),
        *(("onxx:m.onnx", part) for part in ("Did you mean 'onnx'?", "onnx:FILE", "'onxx:m.onnx'")),
        ("", "onnx:FILE"),
        ("onnx:", "'onnx:'"),
        ("onnx:no-such.onnx?output=logits", "'no-such.onnx'"),
        ("onnx:m.onnx?output", "'m.onnx?output'"),
        ("onnx:m.onnx?output=logit", "'logit'"),
        ("onnx:m.onnx?outputs=logits", "Did you mean 'output'?"),
        ("onnx:m.onnx?output=logits&mean", "'mean'"),
        ("onnx:m.onnx?mean=1&mean=2", "'mean'"),
        (Path("m.onnx"), "'onnx:m.onnx'"),
        (42, "builtins.int"),
    ],
)
def test_invalid_specs_are_rejected(spec: object, offending: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        load_classifier(spec)


@pytest.mark.parametrize("name", ["a?b.onnx", "a?b=c.onnx", "50%.onnx", "a&b=c.onnx", "a?.onnx", "a:b.onnx"])
def test_locations_are_literal(
    name: str, make_onnx: Any, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shutil.copy(make_onnx(), tmp_path / name)
    classifier = load_classifier(f"onnx:{file}?output=logits")
    assert classifier.digest == load_classifier(f"onnx:{make_onnx()}").digest
    assert classifier.preprocessing == load_classifier(f"onnx:{file}?").preprocessing
    assert load_classifier(classifier.name)(images).shape == (7, 5)
    monkeypatch.setenv("HOME", str(make_onnx().parent))
    assert load_classifier("onnx:~/m.onnx").digest == classifier.digest


@pytest.mark.parametrize(
    ("spec", "option"),
    [
        ("onnx:m.onnx?threads=x", "threads='x'"),
        ("onnx:m.onnx?threads=1.5", "threads=1.5"),
        ("onnx:m.onnx?threads=true", "threads=True"),
        ("onnx:m.onnx?preprocessing=x", "preprocessing='x'"),
        ("http://localhost:1/v2/models/m?retries=x", "retries='x'"),
        ("http://localhost:1/v2/models/m?timeout=x", "timeout='x'"),
        ("http://localhost:1/v2/models/m?timeout=nan", "timeout=nan"),
        ("http://localhost:1/v2/models/m?headers=x", "headers='x'"),
        ("sklearn:m.pkl?trust_pickle=maybe", "trust_pickle='maybe'"),
    ],
)
def test_options_of_the_wrong_type_are_rejected(spec: str, option: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(option)) as raised:
        load_classifier(spec, output="logits")
    assert repr(spec) in str(raised.value)


def test_a_list_is_an_ensemble_and_arguments_of_the_wrong_type_are_rejected() -> None:
    wrong: dict[str, Any] = {"providers": 3, "output_name": 3, "threads": "2", "name": 3, "output": 3}
    for name, value in wrong.items():
        with pytest.raises(ClassifierError, match=re.escape(f"{name}={value!r}")):
            load_classifier("onnx:m.onnx", **{name: value})
    with pytest.raises(ClassifierError, match="'output'"):
        load_classifier("onnx:m.onnx?output=logits", output="logits")
    classifier = load_classifier(halves)
    assert load_classifier(classifier) is classifier
    with pytest.raises(ClassifierError, match=r"resize="):
        load_classifier(classifier, resize=3)
    ensemble = load_classifier([halves, halves], name="both")
    assert isinstance(ensemble, Ensemble)
    assert (ensemble.name, len(ensemble.members)) == ("both", 2)


def test_values_of_every_type_reach_the_opener(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def opener(
        target: object,
        options: object,
        *,
        yes: bool = False,
        number: float = 0,
        count: Optional[int] = None,  # noqa: UP045  # as people's own openers may write it
        file: str | None = None,
        anything: Any = None,
        others: "Array | None" = None,
    ) -> Classifier:
        seen.update(target=target, yes=yes, number=number, count=count, file=file, anything=anything, others=others)
        return load_classifier(halves)

    scheme = dataclasses.replace(MODELS["onnx"], name="mine", form="mine:X", open=opener)
    monkeypatch.setitem(MODELS._records, "mine", scheme)
    load_classifier("mine:x?yes=1&number=2&count=3&file=4&anything=5&others=a,6")
    expected = {"yes": True, "number": 2, "count": 3, "file": "4", "anything": 5, "others": ("a", 6)}
    assert seen == {"target": "x", **expected}
    load_classifier("mine:x?file=100%25%20%26%3D%3F.pt")
    assert seen["file"] == "100% &=?.pt"
    load_classifier("mine:x", number=np.float32(0.5), count=np.int64(7), file=Path("w.pt"), anything=[8])
    assert (seen["number"], seen["count"], seen["file"], seen["anything"]) == (0.5, 7, Path("w.pt"), [8])
    for off in ("no", "NO", "0", "false"):
        load_classifier(f"mine:x?yes={off}")
        assert seen["yes"] is False
    with pytest.raises(ClassifierError, match="count='x'"):
        load_classifier("mine:x?count=x")


def test_options_in_a_spec_equal_arguments(make_onnx: Any) -> None:
    file = make_onnx()
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
