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
AGREEING = 3
"""Number of reviewers who must agree that an audit is wrong, if reviewers err."""


class Opinion(NamedTuple):
    """What a reviewer thinks about an image."""

    label: int | None
    """A class, or an `Answer`; None after an escalation."""
    is_final: bool = False
    """Whether it is the decision of an administrator."""


def resolve_label(
    opinions: Sequence[Opinion], *, double: bool = False, predicted: Collection[int] | None = None
) -> int | None:
    """Return the label in force; None if it takes more labels.

    One label is enough, or two for `double` images. Different labels take three: the most frequent one is in force, or
    `cannot tell` if there are several of those. The last decision of an administrator is in force at once.

    If reviewers err, `predicted` are the predicted classes of an audit. Then a class that contradicts them takes
    `AGREEING` equal labels, and different labels take two that confirm them; after `AGREEING` + 1 labels without
    either, it is `cannot tell`. The bounds of `Monitor(reviewer_error=)` assume this.

    `opinions` are the active ones, oldest first: at most one of each reviewer, and one decision.
    """
    if final := [one.label for one in opinions if one.is_final]:
        return final[-1]
    labels = [one.label for one in opinions if one.label is not None]
    trusted = labels if predicted is None else [one for one in labels if one in (*predicted, Answer.CANNOT_TELL)]
    if len(set(labels)) <= 1 and labels == trusted:
        return labels[0] if len(labels) > double else None
    counts = Counter(labels)
    leading = [label for label, count in counts.items() if count == max(counts.values())]
    if predicted is not None:
        confirming = Counter(label for label in labels if label in predicted)
        if confirming.total() > 1:
            return confirming.most_common(1)[0][0]
        leading = [label for label in leading if counts[label] >= AGREEING]
    if len(labels) < (3 if leading else AGREEING + 1):
        return None
    return leading[0] if len(leading) == 1 else Answer.CANNOT_TELL


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


def select_active() -> sa.Select[Any]:
    """Return the query of all active events, oldest first."""
    return sa.select(events).where(IS_ACTIVE).order_by(events.c.number)


def settle(connection: sa.Connection, images: Sequence[int]) -> None:
    """Update the labels in force of some images; an image with a label is no longer leased."""
    latest = sa.select(deployments.c.reviewer_error).order_by(deployments.c.number.desc()).limit(1)
    are_erring = bool(connection.execute(latest).scalar())
    update = sa.update(reviews).where(reviews.c.number == sa.bindparam("of_number"))
    names = ("number", "audit", "double", "urgent", "skips", "lease_owner", "lease_until")
    predicted = (decisions.c.label.label("predicted"), decisions.c.labels)
    query: sa.Select[Any] = sa.select(*(reviews.c[name] for name in names), *predicted)
    query = query.join(decisions, decisions.c.number == reviews.c.number)
    for start in range(0, len(images), MAX_IDS):
        block = images[start : start + MAX_IDS]
        active = defaultdict(list)
        for event in connection.execute(select_active().where(events.c.image.in_(block))):
            active[event.image].append(event)
        rows = connection.execute(query.where(reviews.c.number.in_(block))).all()
        connection.execute(update, [_find_standing(row, active[row.number], are_erring) for row in rows])


def _find_standing(row: sa.Row[Any], active: Sequence[sa.Row[Any]], are_erring: bool) -> dict[str, Any]:
    """Return the columns of a review that follow from the active events of its image."""
    labeled, escalated = ([one for one in active if (one.label is None) is missing] for missing in (False, True))
    opinions = [Opinion(one.label, one.action == "decide") for one in active]
    predicted = (row.labels or (row.predicted,)) if are_erring and row.audit else None
    label = resolve_label(opinions, double=row.double, predicted=predicted)
    is_settled = label is not None
    by = ([one for one in labeled if one.label == label] or labeled)[-1] if is_settled else None
    urgent = not is_settled and (bool(escalated) or len({one.label for one in labeled}) > 1)
    shown = active if is_settled else escalated  # comments on labels are hidden from the next reviewer
    return {
        "of_number": row.number,
        "label": label,
        "reviewer": by and by.by,
        "reviewed_at": by and by.at,
        "comment": next((one.comment for one in reversed(shown) if one.comment), None),
        "urgent": urgent,
        "label_count": sum(one.action != "decide" for one in labeled),
        "latest": active[-1].number if active else 0,
        "skips": 0 if urgent and not row.urgent else row.skips,
        "lease_owner": None if is_settled else row.lease_owner,
        "lease_until": None if is_settled else row.lease_until,
    }
