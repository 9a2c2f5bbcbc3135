"""The classifier of a policy: loaded, compared, and refused if loading does more than read a local data file."""

import json
import os
import pickle
import socket
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import MODELS, Classifier, Preprocessing, load_classifier
from secondlook.decisions import SelectiveClassifier, policy_classifier, resolve_classifier
from secondlook.decisions.policy_classifier import inherit_options
from secondlook.errors import DecisionError
from secondlook.policies import Policy, read_policy
from secondlook.specs import MEMBER_SEPARATOR, parse_spec
from tests.decisions.conftest import brightness, make_policy
from tests.policy_maker import score

NETWORK = Path(sl.__file__).parent / "cli" / "demo_data" / "digits.onnx"
MODULE = """
from pathlib import Path
import numpy as np
Path({ran!r}).touch()
def predict(batch): return np.full((len(batch), 2), 0.5)
def make(): return predict
"""
HUGGING_FACE_MODULE = """
from pathlib import Path
from transformers import BitImageProcessorPil
Path({ran!r}).touch()
class OwnProcessor(BitImageProcessorPil): pass
"""


class RunsCode:
    """A pickle that creates a folder when it is loaded."""

    def __init__(self, created: Path) -> None:
        self.created = created

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.created),)


def write_torch_script(path: Path, ran: Path) -> None:
    """Write a TorchScript file that creates the file `ran` when it is called."""
    torch = pytest.importorskip("torch")

    class WritesFile(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

        def forward(self, images):  # type: ignore[no-untyped-def]
            return torch.from_file(self.path, True, 2).reshape(1, 2).repeat(images.shape[0], 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(WritesFile(str(ran))), path)


def write_hugging_face_folder(folder: Path, ran: Path) -> None:
    """Write a model folder whose code creates the file `ran` when it is loaded."""
    folder.mkdir()
    settings = {"image_processor_type": "OwnProcessor", "auto_map": {"AutoImageProcessor": "own.OwnProcessor"}}
    (folder / "config.json").write_text(json.dumps({"model_type": "resnet"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "own.py").write_text(HUGGING_FACE_MODULE.format(ran=str(ran)))


@pytest.fixture(scope="module")
def policy(classifier: Classifier) -> Policy:
    return make_policy(classifier, "identity")


def rename(policy: Policy, name: str) -> Policy:
    return policy.model_copy(update={"classifier": policy.known_classifier.model_copy(update={"name": name})})


def resolve(policy: Policy, given: object = None, *, allow_mismatch: bool = True, **options: Any) -> Any:
    return resolve_classifier(policy, given, allow_mismatch=allow_mismatch, **options)


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def address() -> Iterator[str]:
    """The spec of a model on this machine, which nothing may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v2/models/m"
        yield f"{url}?timeout=0.2&retries=0&output=logits"
        with pytest.raises(BlockingIOError):  # every connection would wait in its queue
            server.accept()


@pytest.fixture(params=["torch script", "torch factory", "hf", "sklearn", "function"])
def name_with_code(request: pytest.FixtureRequest, tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The spec of a model whose code leaves a trace when it is run."""
    if request.param == "torch script":
        write_torch_script(tmp_path / "evil.pt", ran)
        return f"torch:{tmp_path / 'evil.pt'}?output=logits"
    if request.param == "hf":
        write_hugging_face_folder(tmp_path / "evil", ran)
        return f"hf:{tmp_path / 'evil'}?trust_remote_code=true"
    if request.param == "sklearn":
        (tmp_path / "evil.pkl").write_bytes(pickle.dumps(RunsCode(ran)))
        return f"sklearn:{tmp_path / 'evil.pkl'}?trust_pickle=true"
    (tmp_path / "evil_module.py").write_text(MODULE.format(ran=str(ran)))
    monkeypatch.syspath_prepend(tmp_path)
    return "torch:evil_module:make?output=logits" if "factory" in request.param else "function:evil_module:predict"


@pytest.mark.parametrize("allow_mismatch", [False, True])
def test_policy_never_runs_code(
    policy: Policy, name_with_code: str, ran: Path, images: Array, tmp_path: Path, allow_mismatch: bool
) -> None:
    attack = rename(policy, name_with_code)
    scheme = name_with_code.partition(":")[0]
    with pytest.raises(DecisionError, match=f"'{scheme}:.*classifier="):
        resolve(attack, allow_mismatch=allow_mismatch)
    attack.save(tmp_path / "policy.json")
    with pytest.raises(DecisionError, match=f"'{scheme}:.*classifier="):
        score(tmp_path / "policy.json", images, tmp_path / "scores.csv", allow_mismatch=allow_mismatch)
    assert not ran.exists()
    assert not list(tmp_path.glob("scores*"))


@pytest.mark.parametrize("allow_mismatch", [False, True])
def test_policy_connects_to_no_server(
    policy: Policy, classifier: Classifier, address: str, images: Array, tmp_path: Path, allow_mismatch: bool
) -> None:
    """A given classifier is used whatever the policy names."""
    attack = rename(policy, address)
    with pytest.raises(DecisionError, match=r"'http:.*classifier="):
        score(attack, images, tmp_path / "scores.csv", allow_mismatch=allow_mismatch)
    assert len(SelectiveClassifier(classifier, attack).predict(images)) == len(images)
    assert score(attack, images, tmp_path / "scores.csv", classifier=classifier).images == len(images)


@pytest.fixture
def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_classifier, "load_classifier", lambda spec, **_: pytest.fail(f"loaded {spec!r}"))


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize("scheme", [scheme.name for scheme in MODELS.values() if scheme.name != "onnx"])
def test_only_onnx_files_are_loaded_by_a_policy(policy: Policy, scheme: str) -> None:
    for name in (f"{scheme}:x", f"onnx:{NETWORK}{MEMBER_SEPARATOR}{scheme}:x"):
        with pytest.raises(DecisionError, match=f"'{scheme}:x'.*classifier="):
            resolve(rename(policy, name))


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize(
    ("name", "offending"),
    [
        ("onnx://server/share/m.onnx", "//server/share/m.onnx"),
        (r"onnx:\\server\share\m.onnx", r"\\server\share\m.onnx"),
        (r"onnx:/\server/share/m.onnx", r"/\server/share/m.onnx"),
        (r"onnx:\??\UNC\server\share\m.onnx", r"\??\UNC\server\share\m.onnx"),
        ("onnx:http://127.0.0.1:1/m.onnx", "http://127.0.0.1:1/m.onnx"),
        ("onnx:file:///tmp/m.onnx", "file:///tmp/m.onnx"),
        (f"onnx:{NETWORK}?providers=AzureExecutionProvider", "AzureExecutionProvider"),
        (f"onnx:{NETWORK}?threads=1000000", "1000000"),
        (f"onnx:{NETWORK}?library=evil.so", "evil.so"),
        ("https://user:secret@host/v2/models/m", "https://host/v2/models/m"),
        ("unknown:x", "unknown"),
        ("brightness", "brightness"),
        ("function:os:getcwd?name=", "name="),
    ],
)
def test_dangerous_spec_is_refused_before_it_is_loaded(policy: Policy, name: str, offending: str) -> None:
    with pytest.raises(DecisionError, match="classifier=") as refused:
        resolve(rename(policy, name))
    assert repr(offending)[1:-1] in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["onnx:absent.onnx", f"onnx:{NETWORK.parent}", f"onnx:a{MEMBER_SEPARATOR}onnx:b", "onnx:pipe.onnx"]
)
def test_models_that_cannot_be_loaded_are_rejected(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if os.name != "nt":
        os.mkfifo("pipe.onnx")
    for allow_mismatch in (False, True):
        with pytest.raises(DecisionError, match="classifier="):
            resolve(rename(policy, name), allow_mismatch=allow_mismatch)


@pytest.mark.parametrize("options", ["", "?gray=luminance&mean=0.5&threads=1&providers=CPUExecutionProvider"])
def test_local_onnx_file_is_loaded(options: str) -> None:
    """Also as a member of an ensemble."""
    members = [f"onnx:{NETWORK}{options}", f"onnx:{NETWORK}{options or '?mean=0.5'}&std=0.25"]
    classifier, other = map(load_classifier, members)
    resolved = resolve(make_policy(classifier, "identity"), allow_mismatch=False)
    assert (resolved.mismatch, resolved.classifier.digest) == (None, classifier.digest)
    ensemble = load_classifier([classifier, other], name=MEMBER_SEPARATOR.join(members))
    resolved = resolve(make_policy(ensemble, "identity"), allow_mismatch=False)
    assert [member.name for member in resolved.classifier.members] == members


def test_given_classifier_is_compared(policy: Policy, classifier: Classifier) -> None:
    for allow_mismatch in (False, True):
        resolved = resolve(policy, classifier, allow_mismatch=allow_mismatch)
        assert resolved.classifier is classifier
        assert resolved.mismatch is None
    other = load_classifier(brightness, name="darkness")
    with pytest.raises(DecisionError, match=r"'brightness'.*'darkness'"):
        resolve(policy, other, allow_mismatch=False)
    allowed = resolve(policy, other)
    assert allowed.classifier is other
    assert "'darkness'" in str(allowed.mismatch)


# --- Options that a model inherits from the policy ---

MEAN_AND_STD = "mean=0.25&std=0.5"


@pytest.fixture
def described() -> Policy:
    """A policy whose classifier was loaded with options, and whose digest is that of no file."""
    made = make_policy(load_classifier(f"onnx:{NETWORK}?gray=luminance&{MEAN_AND_STD}"), "identity")
    return made.model_copy(update={"classifier": made.known_classifier.model_copy(update={"digest": "0" * 64})})


def test_given_model_inherits_what_it_lacks_but_not_the_output_that_it_declares(
    described: Policy, tmp_path: Path
) -> None:
    (tmp_path / "other.onnx").write_bytes(NETWORK.read_bytes())
    for options in ("", "?threads=1", "?gray=luminance&timeout=60", "?mean=0.125"):
        resolved = resolve(described, f"onnx:{tmp_path / 'other.onnx'}{options}")
        expected = Preprocessing.from_dict(described.known_classifier.preprocessing)
        assert expected.mean == (0.25,)
        expected = replace(expected, mean=(0.125,)) if "mean" in options else expected
        assert resolved.classifier.preprocessing == expected
        assert "std=0.5" in resolved.classifier.name, "messages name what is used"
    # The output of this network is named after its kind.
    for own in ("logits", "probabilities"):
        known = described.known_classifier.model_copy(update={"output": own})
        found = resolve(described.model_copy(update={"classifier": known}), f"onnx:{NETWORK}")
        assert found.classifier.output == load_classifier(f"onnx:{NETWORK}").output


def test_options_given_in_python_are_inherited_from_the_record() -> None:
    classifier = load_classifier(f"onnx:{NETWORK}", gray="luminance", mean=0.1, scale=1 / 255.5, crop=16, std=1 / 3)
    made = make_policy(classifier, "identity")
    assert "mean" not in made.known_classifier.name
    for given in (None, f"onnx:{NETWORK}", [f"onnx:{NETWORK}"]):
        assert resolve(made, given, allow_mismatch=False).mismatch is None


RECORDED = {"gray": "luminance", "mean": "0.25", "std": "0.5"}
TRUSTED = "sklearn:m.pkl?trust_pickle=true&scale=0.0625&revision=refs/pr/1&output=probabilities"
NAMED = "function:package.module:predict?name=v1&resize=32"
URL = "http://host/v2/models/m"
MEMBERS = f"onnx:a?mean=0.25&std=0.5{MEMBER_SEPARATOR}onnx:b?mean=0.75&std=0.5"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        # What trusts a file, names another revision or sends a secret is not inherited.
        (TRUSTED, ["sklearn:new.pkl"], [{"scale": "0.0625", **RECORDED}]),
        (TRUSTED, ["sklearn:new.pkl?trust_pickle=true"], [{"scale": "0.0625", **RECORDED, "trust_pickle": "true"}]),
        (f"{URL}?header_from_env=SECRET", [URL], [RECORDED]),
        # The name is the identity of a function, so that any function would count as the one of the policy.
        (NAMED, ["function:package.module:predict"], [{"name": "v1", "resize": "32"}]),
        (NAMED, ["function:other:predict"], [{"resize": "32"}]),
        (f"{URL}?name=v1", ["http://user:secret@host/v2/models/m"], [{"name": "v1", **RECORDED}]),
        (f"{URL}?name=v1", ["http://other/v2/models/m"], [RECORDED]),
        # A model of another scheme inherits the preprocessing, unless it has its own.
        (f"onnx:m.onnx?threads=2&{MEAN_AND_STD}", ["torch:m.pt2"], [RECORDED]),
        *(
            (f"onnx:m.onnx?threads=2&{MEAN_AND_STD}", [own], [{}])
            for own in ("hf:org/model", "timm:resnet18", "torchvision:resnet18", "function:module:predict")
        ),
        # Members inherit from the members in the same order, or what all of them agree on.
        (MEMBERS, ["onnx:c", "onnx:d?std=0.125"], [{"mean": "0.25", "std": "0.5"}, {"mean": "0.75", "std": "0.125"}]),
        (MEMBERS, ["onnx:c"], [{"std": "0.5"}]),
    ],
)
def test_harmless_options_inherited(
    described: Policy, name: str, given: list[str], expected: list[dict[str, str]]
) -> None:
    inherited = inherit_options(given, rename(described, name))
    for (text, output), model, options in zip(inherited, given, expected, strict=True):
        spec = parse_spec(text)
        assert (spec.scheme, spec.location) == (parse_spec(model).scheme, parse_spec(model).location)
        assert spec.options == options
        if not MODELS[spec.scheme].describes_itself and MEMBER_SEPARATOR not in name:
            assert output == ("probabilities" if "output" in name else described.known_classifier.output)


# --- Models beside their policy ---


@pytest.fixture
def policy_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy for model.onnx beside it; the working directory is another folder."""
    folder = tmp_path / "shipped"
    for path in (folder, tmp_path / "work"):
        path.mkdir()
    (folder / "model.onnx").write_bytes(NETWORK.read_bytes())
    monkeypatch.chdir(folder)
    make_policy(load_classifier("onnx:model.onnx?gray=luminance"), "identity").save("policy.json")
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_model_is_found_beside_the_policy(policy_folder: Path, monkeypatch: pytest.MonkeyPatch, images: Array) -> None:
    """Also if the policy is in the working directory."""
    digits = np.zeros((3, 16, 16, 1), dtype=np.uint8)
    for path in (policy_folder / "policy.json", "../shipped/policy.json"):
        assert score(path, digits, "scores.csv").images == 3
    with monkeypatch.context() as patch:
        patch.chdir(policy_folder)
        assert score("policy.json", digits, "scores.csv").images == 3
    with pytest.raises(DecisionError, match=r"model\.onnx.*classifier="):
        resolve(read_policy(policy_folder / "policy.json"))  # a policy without a file
    (policy_folder / "model.onnx").unlink()
    with pytest.raises(DecisionError, match=r"'model\.onnx'") as missing:
        score(policy_folder / "policy.json", images, "scores.csv")
    assert repr(str(Path.cwd())) in str(missing.value)
    assert repr(str(policy_folder)) in str(missing.value)
    assert "classifier=" in str(missing.value)


def test_model_that_was_moved_with_its_policy_is_found_by_its_name(policy_folder: Path) -> None:
    loaded, model = read_policy(policy_folder / "policy.json"), policy_folder / "model.onnx"
    for location in ("model.onnx", "models/model.onnx", "/elsewhere/model.onnx"):
        moved = rename(loaded, loaded.known_classifier.name.replace("model.onnx", location))
        model.write_bytes(NETWORK.read_bytes())
        found = resolve(moved, allow_mismatch=False, folder=policy_folder)
        assert found.classifier.name.startswith(f"onnx:{model}")
        model.write_bytes(NETWORK.read_bytes() + b"\x32\x01x")
        with pytest.raises(DecisionError):
            resolve(moved, allow_mismatch=False, folder=policy_folder)


@pytest.mark.parametrize("content", [b"no model", NETWORK.read_bytes() + b"\x32\x01x", NETWORK.read_bytes()])
def test_file_that_the_policy_was_made_for_is_found_by_its_digest(policy_folder: Path, content: bytes) -> None:
    Path("model.onnx").write_bytes(content)
    found = resolve(read_policy(policy_folder / "policy.json"), allow_mismatch=False, folder=policy_folder)
    assert found.mismatch is None
    is_here = content == NETWORK.read_bytes()
    assert found.classifier.name.startswith("onnx:model.onnx" if is_here else f"onnx:{policy_folder}")
