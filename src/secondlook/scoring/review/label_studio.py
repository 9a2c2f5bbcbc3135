"""Label Studio: tasks with the classifier's answer as pre-annotation, and the labeling interface they need."""

import json
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

from secondlook.scoring.review.exports import export
from secondlook.scoring.review.pictures import Pictures
from secondlook.scoring.review.review_queue import Doubtful, ReviewQueue
from secondlook.scoring.score_files import rewrite_file

CHOICES_SHOWN = 20
"""More classes than this go into a list to choose from."""


@export(
    "label-studio", "tasks with pre-annotations, and FILE-config.xml with the interface for them", reads_files=False
)
def write_label_studio(path: Path, queue: ReviewQueue, pictures: Pictures) -> None:
    """Write a JSON list of tasks, the least sure first, and the labeling interface beside it."""
    config = interface_of(queue.class_names).encode()
    rewrite_file(path.with_name(f"{path.stem}-config.xml"), lambda file: file.write(config))
    rewrite_file(path, lambda file: file.writelines(_lines(queue, pictures)))


def interface_of(class_names: tuple[str, ...]) -> str:
    """Return the labeling interface: one picture, one choice among the classes."""
    layout = ' layout="select"' if len(class_names) > CHOICES_SHOWN else ""
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="class" toName="image" choice="single"{layout}>\n{choices}\n  </Choices>\n</View>\n'
    )


def _lines(queue: ReviewQueue, pictures: Pictures) -> Iterator[bytes]:
    yield b"["
    for number, image in enumerate(queue):
        task = json.dumps(_task(image, pictures.address_of(image)), ensure_ascii=False)
        yield f"{',' if number else ''}\n{task}".encode()
    yield b"\n]\n"


def _task(image: Doubtful, address: str) -> dict[str, object]:
    low, high = image.interval or (None, None)
    chosen = {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [image.class_name]}}
    prediction: dict[str, object] = {"model_version": "secondlook", "result": [chosen]}
    # Label Studio refuses a score outside [0, 1]; such a confidence can still be sorted by as data.
    if 0 <= image.confidence <= 1:
        prediction["score"] = image.confidence
    data = {
        "image": address,
        "id": image.id,
        "confidence": image.confidence,
        "low": low,
        "high": high,
        "accept": image.accept,
    }
    return {"data": data, "predictions": [prediction]}
