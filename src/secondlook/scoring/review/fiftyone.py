"""FiftyOne: the labels file of its FiftyOneImageClassificationDataset, by absolute paths of the pictures."""

import json
from collections.abc import Iterator
from pathlib import Path

from secondlook.scoring.review.exports import export
from secondlook.scoring.review.pictures import Pictures
from secondlook.scoring.review.review_queue import Doubtful, ReviewQueue
from secondlook.scoring.score_files import rewrite_file


@export("fiftyone", "labels of a FiftyOneImageClassificationDataset, with confidence and interval", reads_files=True)
def write_fiftyone(path: Path, queue: ReviewQueue, pictures: Pictures) -> None:
    """Write the labels, the least sure first; they refer to the pictures where they are."""
    rewrite_file(path, lambda file: file.writelines(_lines(queue, pictures)))


def _lines(queue: ReviewQueue, pictures: Pictures) -> Iterator[bytes]:
    yield f'{{"classes": {json.dumps(queue.class_names, ensure_ascii=False)},\n"labels": {{'.encode()
    for number, image in enumerate(queue):
        key, label = (json.dumps(part, ensure_ascii=False) for part in (str(pictures.path_of(image)), _label(image)))
        yield f"{',' if number else ''}\n{key}: {label}".encode()
    yield b"\n}}\n"


def _label(image: Doubtful) -> dict[str, object]:
    low, high = image.interval or (None, None)
    # What is not FiftyOne's own goes into attributes; "id" is its own.
    attributes = {"low": low, "high": high, "accept": image.accept, "source_id": image.id}
    return {"label": image.label, "confidence": image.confidence, "attributes": attributes}
