"""The tables of the service's database, the same in SQLite and PostgreSQL. Times are seconds since 1970, UTC."""

import sqlalchemy as sa

Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite numbers rows by itself only if their type is INTEGER."""

metadata = sa.MetaData()

settings = sa.Table(
    "settings",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""Version of these tables, and the random seed of audits."""

deployments = sa.Table(
    "deployments",
    metadata,
    sa.Column("number", Number, primary_key=True),
    sa.Column("checksum", sa.Text, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("audit", sa.Double),
    sa.Column("deployed_at", sa.Double, nullable=False),
)
"""The policies that were in force, oldest first, as JSON; `audit` is the fraction of accepted images to review."""

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("number", Number, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("deployment", sa.ForeignKey("deployments.number"), nullable=False, index=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("name", sa.Text),
    sa.Column("label", sa.Integer, nullable=False),
    sa.Column("labels", sa.JSON),
    sa.Column("class_name", sa.Text),
    sa.Column("confidence", sa.Double, nullable=False),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("accept", sa.Boolean, nullable=False),
    sa.Column("looks", sa.Integer, nullable=False),
    sa.Column("first_look", sa.Double, nullable=False),
    sa.Column("disagreement", sa.Double),
    sa.Column("audit", sa.Boolean, nullable=False),
    sa.Column("audit_probability", sa.Double),
    sa.Column("decided_at", sa.Double, nullable=False, index=True),
)
"""One row per image, never changed. `number` is the order of the stream, `digest` the sha256 of the image as it came,
`name` its file name, if any, `labels` the top-k classes, if there are several."""

reviews = sa.Table(
    "reviews",
    metadata,
    sa.Column("number", sa.ForeignKey("decisions.number"), primary_key=True),
    sa.Column("confidence", sa.Double, nullable=False),
    sa.Column("likely", sa.JSON, nullable=False),
    sa.Column("views", sa.JSON, nullable=False),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_until", sa.Double),
    sa.Column("skips", sa.Integer, nullable=False, default=0),
    sa.Column("expired", sa.Boolean, nullable=False, default=False),
    sa.Column("label", sa.Integer),
    sa.Column("reviewer", sa.Text),
    sa.Column("reviewed_at", sa.Double),
    sa.Index("waiting_reviews", "label", "expired", "skips", "confidence", "number"),
    sa.Index("done_reviews", "reviewed_at"),
    sa.Index("owned_reviews", "lease_owner", "label", "reviewed_at"),
    sa.Index("leased_reviews", "lease_until"),
)
"""One row per image that people are to review. `likely` are the likeliest classes as [class, probability], `views` the
view, predicted class and probability of each look. `label` is what the reviewer found; `expired` if the image was
removed before anyone reviewed it."""

images = sa.Table(
    "images",
    metadata,
    sa.Column("number", sa.ForeignKey("decisions.number"), primary_key=True),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("stored_at", sa.Double, nullable=False, index=True),
)
"""The image files of the reviews, as they came."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("csrf", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
)
"""Browsers that are logged in: the sha256 of the cookie, and the token that forms and scripts must send."""
