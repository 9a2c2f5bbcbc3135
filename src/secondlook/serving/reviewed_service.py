"""What the reviewers of a service found, to make its next policy from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secondlook.errors import ServingError
from secondlook.policies import Policy
from secondlook.serving.database import DATABASE_FILE, Database, describe_url, open_database
from secondlook.serving.decision_store import DecisionStore
from secondlook.serving.policy_stream import PolicyStream
from secondlook.serving.review_store import ReviewStore

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class ReviewedService:
    """The images that the policy in force decided about, as far as accepted ones were audited."""

    policy: Policy
    tables: tuple["pa.Table", ...]
    """Rows as in score files, in the order of the stream."""
    labels: dict[str, int]
    """The class that a reviewer found, by the id of the image."""
    left_out: int
    """Number of images that were decided without audits, which reviews say nothing about."""
    where: str
    """The database, without a password."""


def read_reviewed_service(location: str) -> ReviewedService:
    """Read the decisions and reviews of a service from its data folder, or from a PostgreSQL URL; it may be running."""
    database = _open(location)
    try:
        deployment = DecisionStore(database).latest_deployment()
        if deployment is None:
            raise ServingError(
                f"no policy was ever in force in {describe_url(database.url)}; expected the database of a service."
            )
        stream = PolicyStream(database, deployment.policy)
        deployments = stream.list_deployments()
        audited = {number: audit for number, audit in deployments.items() if audit is not None}
        others = {number: None for number in deployments if number not in audited}
        # Before the images: a service that runs may store and label further ones meanwhile.
        labels = {
            one.id: one.label for one in ReviewStore(database, 0.0).labels(list(audited)) if one.label is not None
        }
        tables = tuple(part.rows for part in stream.iter_parts(audited))
        left_out = sum(len(part.rows) for part in stream.iter_parts(others))
        if not tables:
            raise ServingError(
                f"the service decided about {left_out:,} images by its policy without audits, so reviews say nothing "
                "about the accepted ones; serve with audit=0.05, for example."
            )
        return ReviewedService(deployment.policy, tables, labels, left_out, describe_url(database.url))
    finally:
        database.close()


def _open(location: str) -> Database:
    if "://" in location:
        return open_database(Path(), location, create=False)
    folder = Path(location)
    if not (folder / DATABASE_FILE).is_file():  # opening would create it
        raise ServingError(
            f"there is no {DATABASE_FILE} in the folder {location!r}; expected the data folder of a service, or the "
            "URL of its PostgreSQL database."
        )
    return open_database(folder, create=False)
