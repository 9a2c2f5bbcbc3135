"""`ServiceOptions`: limits, storage and address of a service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secondlook.extension import ServingError, is_number

if TYPE_CHECKING:
    from secondlook.serving.store import ReviewedService
    from secondlook.serving.tokens import TokenFile


@dataclass(frozen=True)
class ServiceOptions:
    """The settings of one instance."""

    data_dir: Path
    """Folder of the database, the tokens and the lock of this instance."""
    database: str | None = None
    """URL of a PostgreSQL database; None for SQLite in the data folder."""
    host: str = "127.0.0.1"
    port: int = 8000
    audit: float | None = None
    """Fraction of the accepted images to review; None for none."""
    double_review: float = 0.0
    """Fraction of the images to review that two reviewers label without seeing each other's labels."""
    reviewer_error: float = 0.0
    """Largest error rate of reviewers. Above 0, it takes three reviewers to find an audit wrong."""
    keep: float | None = None
    """Seconds after which stored images are removed, reviewed or not; None for never."""
    store_images: bool = True
    """Whether to store the images to review."""
    batch_size: int = 32
    """Maximum number of images in a batch."""
    max_wait: float = 0.002
    """Maximum seconds that the first image of a batch waits for others."""
    max_waiting: int = 512
    """Queue limit, in images; excess requests get HTTP 429."""
    max_body_bytes: int = 32 * 2**20
    max_images: int = 64
    """Maximum number of images in one request."""
    max_pixels: int = 50_000_000
    body_seconds: float = 30.0
    """Time in which the body of a request must arrive."""
    lease_seconds: float = 300.0
    """Seconds for which an image is reserved for an inactive reviewer."""
    webhook: str | None = field(default=None, repr=False)
    """URL that gets each alarm; None for none."""
    level: float = 0.95
    """Confidence level of the intervals."""

    def __post_init__(self) -> None:
        for name, limit in (("double_review", 1.0), ("reviewer_error", 0.4)):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= limit:
                fault = f"is out of range; expected a number from 0 to {limit:g}"
                raise ServingError(fault, argument=name, value=value)

    @property
    def max_request_images(self) -> int:
        """Maximum number of images in one request: never above the queue limit."""
        return min(self.max_images, self.max_waiting)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in ("::1", "localhost") or self.host.startswith("127.")

    def serve_labeling(self, labels: Mapping[str, int], ready: Callable[[str], None], **task: Any) -> None:
        """Serve the review page for a labeling plan; the arguments are those of `LabelingTask`."""
        from secondlook.serving.labeling import LabelingTask, serve_labeling

        serve_labeling(LabelingTask(**task), self, labels, ready)

    @staticmethod
    def read_labels(path: Path, class_names: tuple[str, ...]) -> dict[str, int]:
        """Read a label file: CSV or Parquet with the columns id and label, or an export of Label Studio.

        A label is a class, or an `Answer` for an image of none.
        """
        from secondlook.serving.label_files import read_label_file

        return read_label_file(path, class_names)

    def open_tokens(self) -> "TokenFile":
        """Return the access tokens of the data folder, which may not exist yet."""
        from secondlook.serving.tokens import TokenFile

        return TokenFile(self.data_dir / "tokens.json")

    def read_reviews(self) -> "ReviewedService":
        """Read decisions and reviews of the policy in force, to calibrate the next one; the service may be running."""
        from secondlook.serving.store import read_reviewed_service

        return read_reviewed_service(self)
