"""The trail of the review: everything that reviewers did, and the label in force that follows from it."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from secondlook.extension import Answer
from secondlook.serving.database import MAX_IDS, decisions, deployments, events, reviews
from secondlook.serving.tokens import Principal

Action = Literal["label", "escalate", "undo", "correct", "withdraw", "decide", "import"]
"""What a reviewer does with an image; only an administrator decides (for everyone) and withdraws (others' labels)."""
IS_ACTIVE = events.c.ended.is_(None)
STANDING = ("label", "wanted", "urgent", "skips", "label_count", "latest", "comment", "reviewer", "reviewed_at")
"""Columns of `reviews` that follow from the events of an image."""


class Opinion(NamedTuple):
    """What a reviewer thinks about an image."""

    label: int | None
    """A class, or an `Answer`; None after an escalation."""
    is_final: bool = False
    """Whether it is the decision of an administrator."""


def resolve_label(
    opinions: Sequence[Opinion], *, double: bool = False, predicted: Collection[int] | None = None
) -> tuple[int | None, int]:
    """Return the label in force, None if there is none yet, and the number of labels that it takes.

    One label is enough, except for `double` images and for a first label that contradicts the `predicted` classes,
    which take two. Different labels take three: the most frequent one is in force, or `cannot tell` if there are
    several of those. The last decision of an administrator is in force at once.

    Parameters
    ----------
    opinions
        The active opinions, oldest first, at most one per reviewer and one decision.
    double
        Whether the image was drawn for two reviewers.
    predicted
        The predicted classes of an audit that a second reviewer must confirm to be wrong; None for other images.
    """
    if final := [one.label for one in opinions if one.is_final]:
        return final[-1], 1
    labels = [one.label for one in opinions if one.label is not None]
    contradicts = predicted is not None and any(is_wrong(label, predicted) for label in labels[:1])
    wanted = 3 if len(set(labels)) > 1 else 2 if double or contradicts else 1
    if len(labels) < wanted:
        return None, wanted
    counts = Counter(labels)
    leading = [label for label, count in counts.items() if count == max(counts.values())]
    return leading[0] if len(leading) == 1 else Answer.CANNOT_TELL, wanted


def is_wrong(label: int, predicted: Collection[int]) -> bool:
    """Whether a label says that a prediction is wrong; `cannot tell` does not."""
    return label != Answer.CANNOT_TELL and label not in predicted


def is_drawn(id_: str, seed: int, share: float) -> bool:
    """Whether an image is drawn for two reviewers; its id and a secret seed decide."""
    digest = hashlib.sha256(f"{seed} double review {id_}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def add_event(
    connection: sa.Connection, image: int, action: Action, principal: Principal, at: float, **values: Any
) -> None:
    """Add an event; `settle` must follow."""
    owned = {"by": principal.name, "session": principal.session}
    connection.execute(sa.insert(events).values(image=image, at=at, action=action, **owned, **values))


def end_event(connection: sa.Connection, event: sa.Row[Any], action: Action) -> None:
    """End an active event because of an action; `settle` must follow."""
    connection.execute(sa.update(events).where(events.c.number == event.number).values(ended=action))


def find_active(connection: sa.Connection, image: int) -> Sequence[sa.Row[Any]]:
    """Return the active events of an image, oldest first."""
    is_own = (events.c.image == image) & IS_ACTIVE
    return connection.execute(sa.select(events).where(is_own).order_by(events.c.number)).all()


def settle(connection: sa.Connection, images: Sequence[int]) -> None:
    """Update the labels in force of some images; an image with a label is no longer leased."""
    changed: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in STANDING}
    update = sa.update(reviews).where(reviews.c.number == sa.bindparam("new_number")).values(**changed)
    latest = sa.select(deployments.c.reviewer_error).order_by(deployments.c.number.desc()).limit(1)
    confirms = bool(connection.execute(latest).scalar())
    predicted = (decisions.c.label.label("predicted"), decisions.c.labels)
    query = sa.select(reviews, *predicted).join(decisions, decisions.c.number == reviews.c.number)
    for start in range(0, len(images), MAX_IDS):
        block = images[start : start + MAX_IDS]
        active = defaultdict(list)
        of_block = sa.select(events).where(events.c.image.in_(block), IS_ACTIVE).order_by(events.c.number)
        for event in connection.execute(of_block):
            active[event.image].append(event)
        rows = connection.execute(query.where(reviews.c.number.in_(block))).all()
        standings = [_find_standing(row, active[row.number], confirms) for row in rows]
        connection.execute(update, [{f"new_{name}": value for name, value in one.items()} for one in standings])
        is_done = reviews.c.number.in_(block) & reviews.c.label.is_not(None)
        connection.execute(sa.update(reviews).where(is_done).values(lease_owner=None, lease_until=None))


def _find_standing(row: sa.Row[Any], active: Sequence[sa.Row[Any]], confirms: bool) -> dict[str, Any]:
    """Return the number of an image, and the values of `STANDING`."""
    opinions = [Opinion(one.label, one.action == "decide") for one in active]
    predicted = (row.labels or (row.predicted,)) if confirms and row.audit else None
    label, wanted = resolve_label(opinions, double=row.double, predicted=predicted)
    labeled, escalated = ([one for one in active if (one.label is None) is missing] for missing in (False, True))
    settling = None if label is None else ([one for one in labeled if one.label == label] or labeled)[-1]
    urgent = label is None and (wanted == 3 or bool(escalated))
    shown = escalated if label is None else active  # comments on labels are hidden from the next reviewer
    return {
        "number": row.number,
        "label": label,
        "wanted": wanted,
        "urgent": urgent,
        "skips": 0 if urgent and not row.urgent else row.skips,
        "label_count": sum(one.action != "decide" for one in labeled),
        "latest": active[-1].number if active else 0,
        "comment": next((one.comment for one in reversed(shown) if one.comment), None),
        "reviewer": None if settling is None else settling.by,
        "reviewed_at": None if settling is None else settling.at,
    }
