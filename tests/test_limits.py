"""The table of limits in SECURITY.md states the limits of the code."""

import inspect
from pathlib import Path

import pytest

from reproduction import archive_files
from secondlook.classifiers import Preprocessing, classifier, http_client, onnx_file, onnx_model
from secondlook.classifiers import remote as remote_models
from secondlook.cli import app
from secondlook.decisions import policy_classifier
from secondlook.serving import ServiceOptions, middleware
from secondlook.sources import image_files, regular_files, source
from secondlook.views import view

SECURITY = Path(__file__).resolve().parents[1] / "SECURITY.md"


def read_table() -> dict[str, str]:
    """Return the limits of the table by name."""
    table = SECURITY.read_text(encoding="utf-8").partition("## Limits\n\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {what: limit for what, limit, _ in rows}


def default_of(function: object, name: str) -> float:
    return float(inspect.signature(function).parameters[name].default)  # type: ignore[arg-type]


def million(number: float) -> str:
    return f"{number / 1e6:.0f} million"


def gib(number: float) -> str:
    return f"{number / 2**30:g} GiB"


def mib(number: float) -> str:
    return f"{number / 2**20:g} MiB"


LIMITS = {
    "pixels of an image, checked": million(source.ReadOptions.max_pixels),
    "decoded images": f"{source.ReadOptions.max_bytes / 1e6:g} MB",
    "scans of a JPEG": f"{image_files.MAX_SCANS}",
    "text files": f"{regular_files.MAX_TEXT_BYTES / 1e9:g} GB",
    "what one file loads": gib(regular_files.MAX_LOADED_BYTES),
    "length of an array": million(regular_files.MAX_LOADED_ROWS),
    "official archives": gib(archive_files.MAX_FILE_BYTES),
    "MATLAB": (
        f"{gib(archive_files.MAX_FILE_BYTES + archive_files.MAT_READER_BYTES)}; "
        f"{archive_files.MAT_READER_SECONDS:g} s and 1 s more for each "
        f"{archive_files.MAT_READER_BYTES_PER_SECOND / 1e6:g} MB"
    ),
    "pixels of an image after": million(Preprocessing.MAX_RESIZED_PIXELS),
    "one batch of an ONNX": f"{default_of(onnx_model.open_onnx, 'timeout'):g} s",
    "ONNX file": gib(onnx_file.MAX_FILE_BYTES),
    "padding": gib(classifier.MAX_PADDED_BYTES),
    "threads of a model": ", ".join(
        str(max(map(int, policy_classifier.HARMLESS_VALUES[name]))) for name in ("threads", "timeout")
    ),
    "request": (
        f"{default_of(remote_models.open_remote, 'timeout'):g} s; "
        f"{1 + default_of(remote_models.open_remote, 'retries'):g}"
    ),
    "response": (f"{mib(http_client.MAX_RESPONSE_BYTES)}; {remote_models.MAX_JSON_VALUES:,}"),
    "body of a request to the service": (
        f"{mib(ServiceOptions.max_body_bytes)}; {ServiceOptions.max_images}; {million(ServiceOptions.max_pixels)}"
    ),
    "bodies of all requests": mib(middleware.MAX_FULL_BODIES * ServiceOptions.max_body_bytes),
    "images that wait": f"{ServiceOptions.max_waiting}; {ServiceOptions.body_seconds:g} s",
    "steps of a view": f"{view.MAX_STEPS}",
    "error message": f"{app.LONGEST_MESSAGE:,} characters; the middle is left out",
}


def test_every_limit_of_the_table_is_checked() -> None:
    assert len(read_table()) == len(LIMITS)


@pytest.mark.parametrize("what", LIMITS)
def test_table_of_limits_equals_the_code(what: str) -> None:
    (stated,) = (limit for row, limit in read_table().items() if row.startswith(what))
    assert stated == LIMITS[what]
