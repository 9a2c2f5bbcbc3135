"""Exports of the review queue to labeling tools: Label Studio and FiftyOne."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from secondlook.decisions.formats import REPLACE, check_output_path, translate_write_errors
from secondlook.decisions.review import ImageLocations, ReviewImage, ReviewQueue
from secondlook.errors import DecisionError
from secondlook.files import write_atomically
from secondlook.registry import Registry
from secondlook.specs import parse_spec

WriteQueue = Callable[[Path, ReviewQueue, ImageLocations], None]
"""Writes the images of a queue to a file, atomically."""

CONFIG_SUFFIX = "-config.xml"

MAX_BUTTONS = 20
"""Label Studio shows more classes than this as a drop-down list."""


@dataclass(frozen=True)
class Export:
    """A file format of a labeling tool, found by the scheme of `SCHEME:FILE`."""

    name: str
    """The scheme."""
    summary: str
    write: WriteQueue
    reads_files: bool
    """Whether the tool needs images that are files on its own disk."""
    companions: tuple[str, ...] = ()
    """Endings of further files: `-config.xml` is written next to `tasks.json` as `tasks-config.xml`."""

    @property
    def form(self) -> str:
        """The text of an export, with a placeholder for the file."""
        return f"{self.name}:FILE"


EXPORTS: Registry[Export] = Registry("export", DecisionError)
"""Every export by its scheme."""


@dataclass(frozen=True)
class ExportFile:
    """An export and the file it is written to."""

    export: Export
    path: Path

    def __str__(self) -> str:
        return f"{self.export.name}:{self.path}"

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that are written."""
        return (self.path, *(self.path.with_name(f"{self.path.stem}{ending}") for ending in self.export.companions))

    @classmethod
    def parse(cls, text: str) -> "ExportFile":
        """Parse `SCHEME:FILE`, and check that the file can be written."""
        scheme, _, location = text.partition(":")
        if scheme in EXPORTS and not location:
            raise DecisionError(f"the export {text!r} names no file; expected {EXPORTS[scheme].form}.")
        if ":" not in text:
            forms = ", ".join(export.form for export in EXPORTS.values())
            raise DecisionError(f"the export {text!r} has no scheme; expected one of: {forms}.")
        spec = parse_spec(text, DecisionError)
        export = EXPORTS.find(spec.scheme, where=f" in {text!r}")
        if spec.options:
            option = next(iter(spec.options))
            raise DecisionError(f"unknown option {option!r} in {text!r}; expected {export.form} without options.")
        file = cls(export, spec.path)
        for path in file.paths:
            check_output_path(path, f"the export {text!r}")
        return file

    def check_new(self, scores: str) -> None:
        """Raise an error if a file exists, to which the scores that do not exist cannot belong."""
        for path in self.paths:
            if path.exists():
                raise DecisionError(
                    f"{str(path)!r} exists, and the scores {scores!r} do not, so it is an export of others",
                    repair=REPLACE,
                )

    def check_images(self, locations: ImageLocations, *, include_accepted: bool) -> None:
        """Raise an error, before the job starts, if the tool could not find the images."""
        if self.export.reads_files or locations.prefix is None:
            locations.check_files(str(self), include_accepted=include_accepted)

    def write(self, queue: ReviewQueue, locations: ImageLocations) -> None:
        """Write the file."""
        with translate_write_errors(f"the export {self.export.name!r}", self.path):
            self.export.write(self.path, queue, locations)


class LabelStudio:
    """The files of Label Studio: a JSON list of tasks, and the labeling interface next to it."""

    @staticmethod
    def write(path: Path, queue: ReviewQueue, locations: ImageLocations) -> None:
        """Write the images of a queue as tasks, and the labeling interface."""
        config = LabelStudio.format_interface(queue.class_names).encode()
        write_atomically(path.with_name(f"{path.stem}{CONFIG_SUFFIX}"), lambda file: file.write(config), clean=True)
        tasks = (LabelStudio.make_task(image, locations.url_of(image)) for image in queue)
        write_atomically(path, lambda file: file.writelines(LabelStudio.format_tasks(tasks)), clean=True)

    @staticmethod
    def format_interface(class_names: tuple[str, ...]) -> str:
        """Return the labeling interface: one image, and a single choice among the classes."""
        layout = ' layout="select"' if len(class_names) > MAX_BUTTONS else ""
        choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
        return (
            '<View>\n  <Image name="image" value="$image"/>\n'
            f'  <Choices name="class" toName="image" choice="single"{layout}>\n{choices}\n  </Choices>\n</View>\n'
        )

    @staticmethod
    def format_tasks(tasks: Iterable[dict[str, object]]) -> Iterator[bytes]:
        """Yield the content of a file of tasks, one after another."""
        yield b"["
        for number, task in enumerate(tasks):
            yield f"{',' if number else ''}\n{json.dumps(task, ensure_ascii=False)}".encode()
        yield b"\n]\n"

    @staticmethod
    def make_task(image: ReviewImage, url: str) -> dict[str, object]:
        """Return an image as a task, with the prediction as a pre-annotation."""
        low, high = image.interval or (None, None)
        prediction: dict[str, object] = {
            "model_version": "secondlook",
            "result": [LabelStudio.make_choice(image.class_name)],
        }
        # Label Studio rejects scores outside [0, 1]; such a confidence can still be sorted by as data.
        if 0 <= image.confidence <= 1:
            prediction["score"] = image.confidence
        about = {"id": image.id, "confidence": image.confidence, "low": low, "high": high, "accept": image.accept}
        return {"data": {"image": url, **about}, "predictions": [prediction]}

    @staticmethod
    def make_choice(class_name: str) -> dict[str, object]:
        """Return the choice of a class in the labeling interface."""
        return {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [class_name]}}


def _write_fiftyone(path: Path, queue: ReviewQueue, locations: ImageLocations) -> None:
    """Write the labels file of a FiftyOneImageClassificationDataset, with the absolute paths of the images."""
    write_atomically(path, lambda file: file.writelines(_fiftyone_lines(queue, locations)), clean=True)


def _fiftyone_lines(queue: ReviewQueue, locations: ImageLocations) -> Iterator[bytes]:
    yield f'{{"classes": {json.dumps(queue.class_names, ensure_ascii=False)},\n"labels": {{'.encode()
    for number, image in enumerate(queue):
        key, label = (json.dumps(value, ensure_ascii=False) for value in _fiftyone_label(image, locations))
        yield f"{',' if number else ''}\n{key}: {label}".encode()
    yield b"\n}}\n"


def _fiftyone_label(image: ReviewImage, locations: ImageLocations) -> tuple[str, dict[str, object]]:
    low, high = image.interval or (None, None)
    # Fields that FiftyOne does not define go into attributes; it has an "id" of its own.
    attributes = {"low": low, "high": high, "accept": image.accept, "source_id": image.id}
    label = {"label": image.label, "confidence": image.confidence, "attributes": attributes}
    return str(locations.path_of(image)), label


EXPORTS.add(
    Export(
        "fiftyone",
        "labels of a FiftyOneImageClassificationDataset, with confidence and interval",
        write=_write_fiftyone,
        reads_files=True,
    )
)
EXPORTS.add(
    Export(
        "label-studio",
        "tasks with pre-annotations, and FILE-config.xml with the labeling interface",
        write=LabelStudio.write,
        reads_files=False,
        companions=(CONFIG_SUFFIX,),
    )
)
