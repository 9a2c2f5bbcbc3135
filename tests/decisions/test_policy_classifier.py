"""The classifier of a policy: loaded, compared, and refused if loading does more than read a local data file."""

import json
import os
import pickle
import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import MODELS, Classifier, Preprocessing, load_classifier
from secondlook.decisions import SelectiveClassifier, policy_classifier, resolve_classifier
from secondlook.decisions.policy_classifier import inherit_options, select_harmless_options
from secondlook.errors import DecisionError
from secondlook.policies import Policy, read_policy
from secondlook.specs import MEMBER_SEPARATOR, parse_spec
from tests.policy_maker import attach, score

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


@pytest.fixture
def policy(classifier: Classifier) -> Policy:
    return attach(Policy(threshold=0.9, method="mean"), classifier=classifier, views=("identity",))


def rename(policy: Policy, name: str) -> Policy:
    return policy.model_copy(update={"classifier": policy.known_classifier.model_copy(update={"name": name})})


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file or folder that exists if code of an attack was run."""
    return tmp_path / "ran"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket on this machine; every connection waits in its queue."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def check_no_connection(listener: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        listener.accept()


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
        resolve_classifier(attack, None, allow_mismatch=allow_mismatch)
    attack.save(tmp_path / "policy.json")
    with pytest.raises(DecisionError, match=f"'{scheme}:.*classifier="):
        score(tmp_path / "policy.json", images, tmp_path / "scores.csv", allow_mismatch=allow_mismatch)
    assert not ran.exists()
    assert not list(tmp_path.glob("scores*"))


@pytest.mark.parametrize("allow_mismatch", [False, True])
def test_policy_connects_to_no_server(
    policy: Policy, listener: socket.socket, images: Array, tmp_path: Path, allow_mismatch: bool
) -> None:
    port = listener.getsockname()[1]
    attack = rename(policy, f"http://127.0.0.1:{port}/v2/models/m?timeout=0.2&retries=0&output=logits")
    with pytest.raises(DecisionError, match=r"'http:.*classifier="):
        score(attack, images, tmp_path / "scores.csv", allow_mismatch=allow_mismatch)
    check_no_connection(listener)


def test_given_classifier_is_used_whatever_the_policy_names(
    policy: Policy, classifier: Classifier, listener: socket.socket, images: Array, tmp_path: Path
) -> None:
    attack = rename(policy, f"http://127.0.0.1:{listener.getsockname()[1]}/v2/models/m?timeout=0.2&retries=0")
    assert len(SelectiveClassifier(classifier, attack).predict(images)) == len(images)
    assert score(attack, images, tmp_path / "scores.csv", classifier=classifier).images == len(images)
    check_no_connection(listener)


@pytest.fixture
def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_classifier, "load_classifier", lambda spec, **_: pytest.fail(f"loaded {spec!r}"))


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize("scheme", [scheme.name for scheme in MODELS.values() if scheme.name != "onnx"])
def test_only_onnx_files_are_loaded_by_a_policy(policy: Policy, scheme: str) -> None:
    for name in (f"{scheme}:x", f"onnx:{NETWORK}{MEMBER_SEPARATOR}{scheme}:x"):
        with pytest.raises(DecisionError, match=f"'{scheme}:x'.*classifier="):
            resolve_classifier(rename(policy, name), None, allow_mismatch=True)


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
        resolve_classifier(rename(policy, name), None, allow_mismatch=True)
    assert repr(offending)[1:-1] in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["onnx:absent.onnx", f"onnx:{NETWORK.parent}", f"onnx:a{MEMBER_SEPARATOR}onnx:b"])
def test_classifier_that_cannot_be_loaded_is_rejected(policy: Policy, name: str) -> None:
    with pytest.raises(DecisionError, match="classifier="):
        resolve_classifier(rename(policy, name), None, allow_mismatch=False)


@pytest.mark.posix
def test_pipe_is_not_opened(policy: Policy, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(DecisionError, match=r"m\.onnx.*classifier="):
        resolve_classifier(rename(policy, f"onnx:{tmp_path / 'm.onnx'}"), None, allow_mismatch=True)


@pytest.mark.parametrize("options", ["", "?gray=luminance&mean=0.5&threads=1&providers=CPUExecutionProvider"])
def test_local_onnx_file_is_loaded(options: str) -> None:
    classifier = load_classifier(f"onnx:{NETWORK}{options}")
    made = attach(Policy(threshold=0.9, method="mean"), classifier=classifier, views=("identity",))
    resolved = resolve_classifier(made, None, allow_mismatch=False)
    assert resolved.mismatch is None
    assert resolved.classifier.digest == classifier.digest


def test_ensemble_of_local_onnx_files_is_loaded() -> None:
    members = [f"onnx:{NETWORK}", f"onnx:{NETWORK}?mean=0.5"]
    ensemble = load_classifier([load_classifier(text) for text in members], name=MEMBER_SEPARATOR.join(members))
    made = attach(Policy(threshold=0.9, method="mean"), classifier=ensemble, views=("identity",))
    resolved = resolve_classifier(made, None, allow_mismatch=False)
    assert [member.name for member in resolved.classifier.members] == members


def test_options_that_trust_a_file_are_not_harmless() -> None:
    spec = parse_spec("sklearn:m.pkl?trust_pickle=true&output=probabilities&mean=0.5&revision=refs/pr/1&threads=2")
    assert select_harmless_options(spec) == {"output": "probabilities", "mean": "0.5", "threads": "2"}


def test_given_classifier_is_compared(policy: Policy, classifier: Classifier, brightness: Callable[[Any], Any]) -> None:
    resolved = resolve_classifier(policy, classifier, allow_mismatch=False)
    assert resolved.classifier is classifier
    assert resolved.mismatch is None
    assert resolve_classifier(policy, classifier, allow_mismatch=True).mismatch is None
    other = load_classifier(brightness, name="darkness")
    with pytest.raises(DecisionError, match=r"'brightness'.*'darkness'"):
        resolve_classifier(policy, other, allow_mismatch=False)
    allowed = resolve_classifier(policy, other, allow_mismatch=True)
    assert allowed.classifier is other
    assert allowed.mismatch is not None
    assert "'darkness'" in allowed.mismatch


MEAN_AND_STD = "mean=0.25&std=0.5"


@pytest.fixture
def described() -> Policy:
    """A policy whose classifier was loaded with options, and whose digest is that of no file."""
    classifier = load_classifier(f"onnx:{NETWORK}?gray=luminance&{MEAN_AND_STD}")
    made = attach(Policy(threshold=0.9, method="mean"), classifier=classifier, views=("identity",))
    return made.model_copy(update={"classifier": made.known_classifier.model_copy(update={"digest": "0" * 64})})


@pytest.mark.parametrize("options", ["", "?threads=1", "?gray=luminance&timeout=60"])
def test_given_model_inherits_each_option_that_it_lacks(described: Policy, options: str, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(NETWORK.read_bytes())
    resolved = resolve_classifier(described, f"onnx:{tmp_path / 'other.onnx'}{options}", allow_mismatch=True)
    expected = Preprocessing.from_dict(described.known_classifier.preprocessing)
    assert expected.mean == (0.25,)
    assert resolved.classifier.preprocessing == expected
    assert MEAN_AND_STD in resolved.classifier.name, "messages name what is used"


def test_given_option_wins(described: Policy) -> None:
    resolved = resolve_classifier(described, f"onnx:{NETWORK}?mean=0.125", allow_mismatch=True)
    preprocessing = resolved.classifier.preprocessing
    assert (preprocessing.mean, preprocessing.std, preprocessing.gray) == ((0.125,), (0.5,), "luminance")


def test_options_given_in_python_are_inherited_from_the_record() -> None:
    classifier = load_classifier(f"onnx:{NETWORK}", gray="luminance", mean=0.1, scale=1 / 255.5, crop=16, std=1 / 3)
    made = attach(Policy(threshold=0.9, method="mean"), classifier=classifier, views=("identity",))
    assert "mean" not in made.known_classifier.name
    for given in (None, f"onnx:{NETWORK}", [f"onnx:{NETWORK}"]):
        assert resolve_classifier(made, given, allow_mismatch=False).mismatch is None


@pytest.mark.parametrize("own", ["logits", "probabilities"])
def test_output_that_the_model_declares_is_not_that_of_the_policy(described: Policy, own: str) -> None:
    """The output of this network is named after its kind."""
    declared = load_classifier(f"onnx:{NETWORK}").output
    policy = described.model_copy(update={"classifier": described.known_classifier.model_copy(update={"output": own})})
    assert resolve_classifier(policy, f"onnx:{NETWORK}", allow_mismatch=True).classifier.output == declared


def inherit(policy: Policy, name: str, *given: str) -> list[str]:
    return [spec for spec, _ in inherit_options(given, rename(policy, name))]


def test_only_harmless_options_are_inherited(described: Policy) -> None:
    name = "sklearn:m.pkl?trust_pickle=true&scale=0.0625&revision=refs/pr/1"
    assert "trust" not in inherit(described, name, "sklearn:new.pkl")[0]
    (merged,) = inherit(described, name, "sklearn:new.pkl?trust_pickle=true")
    assert parse_spec(merged).options == {
        "trust_pickle": "true",
        "scale": "0.0625",
        "gray": "luminance",
        "mean": "0.25",
        "std": "0.5",
    }
    (remote,) = inherit(described, "http://host/v2/models/m?header_from_env=SECRET", "http://host/v2/models/m")
    assert "SECRET" not in remote


def test_name_is_not_inherited_by_another_model(described: Policy) -> None:
    """It is the identity of a function, so that any function would count as the one of the policy."""
    name = "function:package.module:predict?name=v1&resize=32"
    assert parse_spec(inherit(described, name, "function:package.module:predict")[0]).options == {
        "name": "v1",
        "resize": "32",
    }
    assert parse_spec(inherit(described, name, "function:other:predict")[0]).options == {"resize": "32"}
    url = "http://host/v2/models/m"
    assert "name=v1" in inherit(described, f"{url}?name=v1", "http://user:secret@host/v2/models/m")[0]
    assert "name=v1" not in inherit(described, f"{url}?name=v1", "http://other/v2/models/m")[0]


def test_model_of_another_scheme_inherits_the_preprocessing_unless_it_has_its_own(described: Policy) -> None:
    name = f"onnx:m.onnx?threads=2&{MEAN_AND_STD}"
    ((torch, output),) = inherit_options(["torch:m.pt2"], rename(described, name))
    assert parse_spec(torch).options == {"gray": "luminance", "mean": "0.25", "std": "0.5"}
    assert output == described.known_classifier.output
    for own in ("hf:org/model", "timm:resnet18", "torchvision:resnet18", "function:module:predict"):
        (model,) = inherit_options([own], rename(described, name))
        assert model == (own, None)


def test_members_inherit_from_the_members_in_the_same_order(described: Policy) -> None:
    name = f"onnx:a?mean=0.25&std=0.5{MEMBER_SEPARATOR}onnx:b?mean=0.75&std=0.5"
    assert inherit(described, name, "onnx:c", "onnx:d?std=0.125") == [
        "onnx:c?mean=0.25&std=0.5",
        "onnx:d?mean=0.75&std=0.125",
    ]
    assert inherit(described, name, "onnx:c") == ["onnx:c?std=0.5"], "what all members agree on"


@pytest.fixture
def policy_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy for model.onnx beside it; the working directory is another folder."""
    folder = tmp_path / "shipped"
    for path in (folder, tmp_path / "work"):
        path.mkdir()
    (folder / "model.onnx").write_bytes(NETWORK.read_bytes())
    monkeypatch.chdir(folder)
    classifier = load_classifier("onnx:model.onnx?gray=luminance")
    attach(Policy(threshold=0.5, method="mean"), classifier=classifier, views=("identity",)).save("policy.json")
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_relative_model_is_found_beside_the_policy(policy_folder: Path) -> None:
    digits = np.zeros((3, 16, 16, 1), dtype=np.uint8)
    assert score(policy_folder / "policy.json", digits, "scores.csv").images == 3
    assert score("../shipped/policy.json", digits, "again.csv").images == 3
    loaded = read_policy(policy_folder / "policy.json")
    here = resolve_classifier(loaded, None, allow_mismatch=False, folder=policy_folder)
    assert here.classifier.name.startswith(f"onnx:{policy_folder / 'model.onnx'}")
    with pytest.raises(DecisionError, match=r"model\.onnx.*classifier="):
        resolve_classifier(loaded, None, allow_mismatch=False)  # a policy without a file


@pytest.mark.parametrize("location", ["models/model.onnx", "/elsewhere/model.onnx"])
def test_model_that_was_moved_with_its_policy_is_found_by_its_name(policy_folder: Path, location: str) -> None:
    loaded = read_policy(policy_folder / "policy.json")
    name = loaded.known_classifier.name.replace("model.onnx", location)
    loaded = loaded.model_copy(update={"classifier": loaded.known_classifier.model_copy(update={"name": name})})
    found = resolve_classifier(loaded, None, allow_mismatch=False, folder=policy_folder)
    assert found.classifier.name.startswith(f"onnx:{policy_folder / 'model.onnx'}")
    (policy_folder / "model.onnx").write_bytes(NETWORK.read_bytes() + b"\x32\x01x")
    with pytest.raises(DecisionError):
        resolve_classifier(loaded, None, allow_mismatch=False, folder=policy_folder)


@pytest.mark.parametrize("content", [b"no model", NETWORK.read_bytes() + b"\x32\x01x", NETWORK.read_bytes()])
def test_file_that_the_policy_was_made_for_is_found_by_its_digest(policy_folder: Path, content: bytes) -> None:
    Path("model.onnx").write_bytes(content)
    loaded = read_policy(policy_folder / "policy.json")
    found = resolve_classifier(loaded, None, allow_mismatch=False, folder=policy_folder)
    assert found.mismatch is None
    is_here = content == NETWORK.read_bytes()
    assert found.classifier.name.startswith("onnx:model.onnx" if is_here else f"onnx:{policy_folder}")


def test_missing_model_names_both_places(policy_folder: Path, images: Array) -> None:
    (policy_folder / "model.onnx").unlink()
    with pytest.raises(DecisionError, match=r"'model\.onnx'") as missing:
        score(policy_folder / "policy.json", images, "scores.csv")
    assert repr(str(Path.cwd())) in str(missing.value)
    assert repr(str(policy_folder)) in str(missing.value)
    assert "classifier=" in str(missing.value)
