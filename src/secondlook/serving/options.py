"""How a service is run: limits, storage and who may use it."""

from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServiceOptions:
    """The settings of one instance."""

    data_dir: Path
    """Folder of the database, the tokens and the lock of this instance."""
    database: str | None = None
    """URL of a PostgreSQL database; None for SQLite in the data folder."""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    audit: float | None = None
    """Fraction of the accepted images to review; None for none."""
    keep: float | None = None
    """Seconds after which stored images are removed, reviewed or not; None for never."""
    store_images: bool = True
    """Whether images that are to be reviewed are stored."""
    batch_size: int = 32
    """Largest number of images that are looked at together."""
    max_wait: float = 0.002
    """Seconds that the first image of a batch waits for others."""
    max_waiting: int = 512
    """Number of images that may be in work or wait for it; further requests are asked to come back."""
    max_body_bytes: int = 32 * 2**20
    max_images: int = 64
    """Number of images in one request."""
    max_pixels: int = 50_000_000
    body_seconds: float = 30.0
    """Time in which the body of a request must arrive."""
    lease_seconds: float = 300.0
    """How long an image is reserved for a reviewer who does not respond."""
    level: float = 0.95
    """Confidence level of the intervals."""

    @property
    def max_request_images(self) -> int:
        """Number of images that one request may have: not more than may wait, since it would be refused for ever."""
        return min(self.max_images, self.max_waiting)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK or self.host.startswith("127.")
