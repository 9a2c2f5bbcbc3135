"""`export_onnx`: a policy and its classifier as one ONNX file that decides."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from secondlook import __version__
from secondlook.extension import (
    Classifier,
    DecisionError,
    Execution,
    ExportedFile,
    ExportError,
    ExportRecord,
    OnnxClassifier,
    OnnxFile,
    PixelType,
    Plan,
    Policy,
    Repair,
    compile_policy,
    import_extra,
    load_policy,
    read_policy,
    resolve_classifier,
    short_name,
    write_bytes_atomically,
)

CHECKED_IMAGES = 2
"""Number of random images that the model is run on before it is written; more than 1, to detect a fixed batch size."""


@dataclass(frozen=True)
class ExportSummary:
    """Result of `export_onnx`."""

    path: Path
    size: int
    """Bytes of the file."""
    added: int
    """Bytes in addition to its classifiers."""
    opset: int
    image_shape: tuple[int | None, int | None, int | None]
    """Height, width and channels of the images; None if arbitrary."""
    pixels: PixelType
    adaptive: bool
    """Whether looks at an image stop once its decision is clear."""
    views: int
    guarantee_text: str

    def to_dict(self) -> dict[str, object]:
        """Return the summary as JSON values."""
        return {**asdict(self), "path": str(self.path)}

    def __str__(self) -> str:
        height, width, channels = ("any" if size is None else str(size) for size in self.image_shape)
        looks = f"at most {self.views}, until the decision is clear" if self.adaptive else f"all {self.views} views"
        return (
            f"input: {self.pixels} [batch, {height}, {width}, {channels}]\nlooks: {looks}\n"
            f"guarantee: {self.guarantee_text}\nopset: {self.opset}\n\n"
            f"Written to {self.path}: {self.size:,} bytes, {self.added:,} more than the classifier."
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

    The file contains resizing, cropping, normalization, all views, the classifier, the confidence and the threshold as
    ONNX operators. Open it with `load_policy`, and compare it with the library by `verify_export`.

    Parameters
    ----------
    policy
        A policy, or the path of its file.
    out
        The file to write.
    classifier
        The classifier of the policy, if it cannot be loaded from the spec in the policy.
    image_shape
        Height, width and channels of the images, if the classifier and its preprocessing do not determine them.
    pixels
        Pixel type of the input: "uint8", or "float32" in [0, 1].
    allow_mismatch
        Whether to accept a classifier that the policy was not calibrated for; the guarantee does not hold then.
    overwrite
        Whether to replace an existing file.
    """
    import_extra("onnx", feature="export to ONNX", extra="export")
    from secondlook.onnx_export.confidence_graph import check_method
    from secondlook.onnx_export.decision_graph import DecisionGraph
    from secondlook.onnx_export.graph import describe_failures
    from secondlook.onnx_export.image_graph import find_image_shape
    from secondlook.onnx_export.networks import make_networks, measure_files

    path = Path(out)
    if pixels not in get_args(PixelType):
        raise ExportError("is unknown; expected 'uint8' or 'float32'", argument="pixels", value=pixels)
    if path.suffix != ".onnx":
        raise ExportError(f"the file {str(path)!r} does not end in .onnx; choose a name such as 'decide.onnx'.")
    if not path.parent.is_dir():
        raise ExportError(f"the folder {str(path.parent)!r} does not exist; create it, or choose another one.")
    if path.exists() and not overwrite:
        repair = Repair("pass {overwrite} to replace it, or choose another name", overwrite=True)
        raise ExportError(f"the file {str(path)!r} exists", repair=repair)
    if isinstance(policy, Policy):
        policy.check_storable()
    plan = compile_with_classifier(policy, classifier, Execution(device="cpu"), allow_mismatch=allow_mismatch)
    loaded, members = plan.given, plan.members
    check_method(loaded)
    _check_inputs_are_kept(path, policy, members)
    shape = find_image_shape(plan.classifier.preprocessing, image_shape)
    networks = make_networks(members, shape.fitted)
    graph = DecisionGraph(plan, shape, networks)
    record = ExportRecord(
        secondlook=__version__,
        pixels=pixels,
        image_shape=shape.given,  # type: ignore[arg-type] # 1 or 3 channels
        members=len(members),
        outputs=tuple(plan.kinds),
        classes=graph.n_classes,
        adaptive=loaded.schedule is not None,
        mismatch=plan.mismatch,
    )
    guarantee = loaded.guarantee_text if plan.mismatch is None else f"none, since {plan.mismatch}"
    with describe_failures("the exported ONNX model is not valid", "check the ONNX model of its classifier."):
        model = graph.make_model(record, _describe(plan, guarantee))
        content = OnnxFile.seal(model.SerializeToString())
    _check_content(content, shape.given, path)
    write_bytes_atomically(path, content)
    own = sum(
        measure_files(member) if isinstance(member, OnnxClassifier) else network.ByteSize()
        for member, network in zip(members, networks, strict=True)
    )
    return ExportSummary(
        path=path,
        size=len(content),
        added=len(content) - own,
        opset=graph.opset,
        image_shape=shape.given,
        pixels=pixels,
        adaptive=record.adaptive,
        views=len(plan.views),
        guarantee_text=guarantee,
    )


def compile_with_classifier(
    policy: Policy | str | Path, classifier: object, execution: Execution, *, allow_mismatch: bool
) -> Plan:
    """Return the plan of a policy; for a policy from an exported file, load the classifier by its spec."""
    if isinstance(policy, Policy):
        plan = compile_policy(policy.bind(classifier, allow_mismatch=allow_mismatch, execution=execution))
        if isinstance(plan, Plan):
            return plan
        assert isinstance(plan, ExportedFile), "there are two kinds"
        folder = plan.path.parent
    else:
        folder, policy = Path(policy).expanduser().parent, read_policy(policy)
    resolved = resolve_classifier(policy, classifier, allow_mismatch=allow_mismatch, folder=folder)
    return Plan(policy, resolved.on_device(execution.device), execution)


def _check_inputs_are_kept(path: Path, policy: object, members: Sequence[Classifier]) -> None:
    used = [file for one in members if isinstance(one, OnnxClassifier) for file in one.list_files()]
    used += [Path(policy)] if isinstance(policy, str | Path) else []
    if path.exists() and any(path.samefile(file) for file in used):
        raise ExportError(f"the file {str(path)!r} would replace an input of the export; choose another name.")


def _describe(plan: Plan, guarantee: str) -> str:
    """Return the description stored in the file, without local folders."""
    policy, name, n_views = plan.given, plan.classifier.name, len(plan.views)
    for full in (policy.known_classifier.name, name):
        guarantee = guarantee.replace(repr(full), repr(short_name(full)))
    looks = f"All {n_views} views of every image are classified"
    if policy.schedule is not None:
        looks = f"Views of an image are classified until its decision is clear, at most {n_views}"
    start = f"Decides whether to accept the prediction of {short_name(name)}"
    return f"{start}. {looks}. {policy.describe_threshold()}. Guarantee: {guarantee}."


def _check_content(content: bytes, image_shape: Sequence[int | None], path: Path) -> None:
    """Run the model on random images, so that failures in ONNX Runtime are raised before the file is written."""
    sizes = [size or default for size, default in zip(image_shape, (64, 64, 3), strict=True)]
    images = np.random.default_rng(0).integers(0, 256, (CHECKED_IMAGES, *sizes), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "decide.onnx"
        file.write_bytes(content)
        try:
            opened = compile_policy(load_policy(file, execution=Execution(device="cpu")))
            assert isinstance(opened, ExportedFile), "its policy came from the file"
            opened.decide_images(images, batch_size=CHECKED_IMAGES)
        except DecisionError as error:
            reason = (str(error).rpartition("; ")[0] or str(error)).replace(repr(str(file)), repr(str(path)))
            fault = f"{str(path)!r} was not written, since the model fails on random images: {reason}"
            raise ExportError(fault, repair="check the classifier, and the ONNX forms of custom steps") from error
