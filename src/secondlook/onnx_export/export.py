"""`export_onnx`: a policy and its classifier as one ONNX file that decides."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from secondlook import __version__
from secondlook.classifiers import Classifier, OnnxClassifier, OnnxFile
from secondlook.decisions import (
    EXPORT_METADATA,
    INPUT_NAME,
    ExportRecord,
    PixelType,
    ResolvedClassifier,
    list_outputs,
    load_decider,
    open_policy_classifier,
)
from secondlook.errors import DecisionError, ExportError, Repair
from secondlook.files import write_bytes_atomically
from secondlook.imports import import_extra
from secondlook.onnx_export.confidence_graph import check_method
from secondlook.onnx_export.conversion import describe_failures
from secondlook.onnx_export.decision_graph import DecisionOutputs, DecisionPlan, add_decision
from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, describe_value
from secondlook.onnx_export.networks import Network, make_networks
from secondlook.onnx_export.preprocessing_graph import ImageShape, add_fit, find_image_shape
from secondlook.operations import Frame
from secondlook.policies import POLICY_METADATA, Policy, check_threshold_transfers
from secondlook.specs import short_name
from secondlook.views import ViewSet

if TYPE_CHECKING:
    import onnx


CHECKED_IMAGES = 2
"""Random images that a file decides about before it is written: more than one, since a batch can be fixed to that."""


@dataclass(frozen=True)
class ExportSummary:
    """Result of `export_onnx`."""

    path: Path
    size: int
    """Bytes of the file."""
    added: int
    """Bytes that it has more than its classifiers."""
    opset: int
    image_shape: tuple[int | None, int | None, int | None]
    """Height, width and channels of the images; None where any is accepted."""
    pixels: PixelType
    adaptive: bool
    """Whether an image is looked at only until it is decided."""
    views: int
    guarantee_text: str

    def to_dict(self) -> dict[str, object]:
        """Return the summary as JSON values."""
        return {**asdict(self), "path": str(self.path)}

    def __str__(self) -> str:
        height, width, channels = ("any" if size is None else str(size) for size in self.image_shape)
        looks = f"at most {self.views}, until the decision is clear" if self.adaptive else f"all {self.views} views"
        return "\n".join(
            [
                f"input: {self.pixels} [batch, {height}, {width}, {channels}]",
                f"looks: {looks}",
                f"guarantee: {self.guarantee_text}",
                f"opset: {self.opset}",
                "",
                f"Written to {self.path}: {self.size:,} bytes, {self.added:,} more than the classifier.",
            ]
        )


def export_onnx(
    policy: Policy | str | Path,
    out: str | Path,
    *,
    classifier: object = None,
    image_shape: Sequence[int] | None = None,
    pixels: PixelType = "uint8",
    allow_mismatch: bool = False,
    overwrite: bool = False,
) -> ExportSummary:
    """Write a policy with its classifier as one ONNX file: pixels in, decisions out.

    Resizing, cropping and normalization, all views, the classifier, the confidence and the threshold are operators of
    ONNX in it, so that it runs wherever ONNX runs. `load_decider` reads it, `verify_decider` compares it with the
    library.

    Parameters
    ----------
    policy
        A policy, or the path of its file.
    out
        The file to write.
    classifier
        The classifier of the policy, if it cannot be loaded from the spec in the policy.
    image_shape
        Height, width and channels of the images, where the classifier and its preprocessing leave them open.
    pixels
        Type of the pixels that the file takes: "uint8", or "float32" in [0, 1].
    allow_mismatch
        Whether to accept a classifier that the policy was not made for; nothing is guaranteed then.
    overwrite
        Whether to replace an existing file.
    """
    import_extra("onnx", feature="export to ONNX", extra="export")
    path = Path(out)
    _check_arguments(path, pixels, overwrite=overwrite)
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
    check_threshold_transfers(loaded.method, loaded.options)
    check_method(loaded.rule)
    resolved = open_policy_classifier(policy, loaded, classifier, allow_mismatch=allow_mismatch).on_device("cpu")
    members = resolved.classifier.members or (resolved.classifier,)
    _check_inputs_are_kept(path, policy, members)
    shape = find_image_shape(resolved.classifier.preprocessing, image_shape)
    networks = make_networks(members, shape.fitted)
    views = ViewSet(list(loaded.views))
    plan = DecisionPlan(loaded.rule, views, Frame(*shape.fitted), tuple(members), tuple(networks))
    record = _make_record(plan, shape, pixels, resolved)
    with describe_failures("the policy does not become a valid ONNX model", "check the ONNX model of its classifier."):
        model = _make_model(loaded, plan, shape, record, resolved.classifier.name)
        content = OnnxFile.seal(model.SerializeToString())
    _check_content(content, shape, path)
    write_bytes_atomically(path, content)
    added = len(content) - sum(network.size for network in networks)
    guarantee = _describe_guarantee(loaded, record)
    return ExportSummary(
        path, len(content), added, _find_opset(networks), shape.given, pixels, record.adaptive, len(views), guarantee
    )


def _check_arguments(path: Path, pixels: object, *, overwrite: bool) -> None:
    if pixels not in get_args(PixelType):
        raise ExportError("is unknown; expected 'uint8' or 'float32'", argument="pixels", value=pixels)
    if path.suffix != ".onnx":
        raise ExportError(f"the file {str(path)!r} does not end in .onnx; choose a name such as 'decide.onnx'.")
    if not path.parent.is_dir():
        raise ExportError(f"the folder {str(path.parent)!r} does not exist; create it, or choose another one.")
    if path.exists() and not overwrite:
        repair = Repair("pass {overwrite} to replace it, or choose another name", overwrite=True)
        raise ExportError(f"the file {str(path)!r} exists", repair=repair)


def _check_inputs_are_kept(path: Path, policy: object, members: Sequence[Classifier]) -> None:
    """Raise if the file would replace one that it is made from."""
    used = {file: "the classifier" for one in members if isinstance(one, OnnxClassifier) for file in one.list_files()}
    if isinstance(policy, str | Path):
        used[Path(policy)] = "the policy"
    for file, what in used.items():
        if path.exists() and path.samefile(file):
            raise ExportError(f"the file {str(path)!r} would replace {what} that it is made from; choose another name.")


def _make_record(
    plan: DecisionPlan, shape: ImageShape, pixels: PixelType, resolved: ResolvedClassifier
) -> ExportRecord:
    return ExportRecord(
        secondlook=__version__,
        pixels=pixels,
        image_shape=shape.given,  # type: ignore[arg-type] # 1 or 3 channels
        members=len(plan.members),
        outputs=tuple(member.output for member in plan.members),
        classes=plan.n_classes,
        adaptive=plan.rule.schedule is not None,
        mismatch=resolved.mismatch,
    )


def _find_opset(networks: Sequence[Network]) -> int:
    """Return the version of ONNX's operators, which all networks share."""
    (found,) = {one.version for one in networks[0].model.opset_import if one.domain in ("", "ai.onnx")}
    return max(LOWEST_OPSET, int(found))


def _make_model(
    policy: Policy, plan: DecisionPlan, shape: ImageShape, record: ExportRecord, name: str
) -> "onnx.ModelProto":
    """Return the model, which is checked; `name` is that of its classifier."""
    from onnx import checker, helper

    graph = Graph(_find_opset(plan.networks))
    images = graph.tensor(INPUT_NAME, np.dtype(record.pixels))
    fitted = add_fit(graph, images, plan.members[0].preprocessing, shape)
    decided = add_decision(graph, fitted, plan)
    names = ("height", "width", "channels")
    sizes = [name if size is None else size for name, size in zip(names, shape.given, strict=True)]
    inputs = [describe_value(INPUT_NAME, images.dtype, ["batch", *sizes])]
    built = graph.build("decide", inputs, _name_outputs(graph, decided, plan, policy))
    domains = {one.domain: one.version for network in plan.networks for one in network.model.opset_import}
    domains = {**{name: version for name, version in domains.items() if name}, "": graph.opset}
    model = helper.make_model(
        built,
        opset_imports=[helper.make_opsetid(name, version) for name, version in domains.items()],
        ir_version=max(network.model.ir_version for network in plan.networks),
        producer_name="secondlook",
        producer_version=__version__,
        doc_string=_describe(policy, plan, record, name),
    )
    helper.set_model_props(
        model, {POLICY_METADATA: policy.model_dump_json(), EXPORT_METADATA: record.model_dump_json()}
    )
    checker.check_model(model, full_check=True)
    return model


def _name_outputs(
    graph: Graph, decided: DecisionOutputs, plan: DecisionPlan, policy: Policy
) -> "list[onnx.ValueInfoProto]":
    """Give the outputs their names, and return their descriptions."""
    n_outputs = len(plan.members) * plan.n_classes
    shapes: dict[str, list[int | str]] = {
        "label": [],
        "confidence": [],
        "accept": [],
        "probabilities": [plan.n_classes],
        "looks": [],
        "view_outputs": [len(plan.views), n_outputs],
        "labels": [plan.rule.top_k],
    }
    named = {name: graph.rename(getattr(decided, name), name) for name in list_outputs(policy)}
    return [describe_value(name, tensor.dtype, ["batch", *shapes[name]]) for name, tensor in named.items()]


def _describe_guarantee(policy: Policy, record: ExportRecord) -> str:
    return policy.guarantee_text if record.mismatch is None else f"none, since {record.mismatch}"


def _describe(policy: Policy, plan: DecisionPlan, record: ExportRecord, name: str) -> str:
    """Return what the file is, for those who look into it; without the folders of whoever exported it."""
    guarantee = _describe_guarantee(policy, record)
    for full in (policy.classifier.name, name):
        guarantee = guarantee.replace(repr(full), repr(short_name(full)))
    looks = f"All {len(plan.views)} views of every image are classified."
    if plan.rule.schedule is not None:
        looks = (
            f"Each image is looked at until its decision is clear, at most {len(plan.views)} times; images of a batch "
            "that are decided are not looked at again."
        )
    return (
        f"Decides whether to accept the prediction of {short_name(name)}. {looks} "
        f"{policy.rule.describe_threshold()}. Guarantee: {guarantee}."
    )


def _check_content(content: bytes, shape: ImageShape, path: Path) -> None:
    """Run the file on random images: what ONNX Runtime does not take is an error before anything is written."""
    sizes = [size or default for size, default in zip(shape.given, (64, 64, 3), strict=True)]
    images = np.random.default_rng(0).integers(0, 256, (CHECKED_IMAGES, *sizes), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "decide.onnx"
        file.write_bytes(content)
        try:
            load_decider(file, device="cpu").decide_images(images, batch_size=CHECKED_IMAGES)
        except DecisionError as error:
            reason = (str(error).rpartition("; ")[0] or str(error)).replace(repr(str(file)), repr(str(path)))
            raise ExportError(
                f"{str(path)!r} is not written, since it fails on random images: {reason}; check the classifier, and "
                "the ONNX forms of your own steps."
            ) from error
