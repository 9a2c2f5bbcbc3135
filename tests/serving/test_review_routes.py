"""The routes of the review queue, with a running server."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from secondlook.serving.review_routes import find_class_names
from secondlook.serving.service import Service
from tests.serving.running import VIEWS, Digits, Reply, make_noise, make_png, send, send_image, serve

HOSTILE = "<script>alert('1')</script>"


class Team(NamedTuple):
    """A server with three rejected images, two reviewers and a client."""

    url: str
    service: Service
    tokens: dict[str, str]

    def post(self, who: str, path: str, **body: Any) -> Reply:
        return send(
            f"{self.url}/v1/review/{path}",
            json.dumps(body).encode(),
            Content_Type="application/json",
            Authorization=f"Bearer {self.tokens[who]}",
        )

    def get(self, who: str, path: str) -> Reply:
        return send(f"{self.url}{path}", Authorization=f"Bearer {self.tokens[who]}")

    def lease(self, who: str, count: int) -> list[Any]:
        reply = self.post(who, "lease", count=count)
        assert reply.status == 200, reply.body
        return list(reply.json["items"])


def make_pixels(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (16, 16, 1), dtype=np.uint8)


@pytest.fixture
def team(digits: Digits, tmp_path: Path) -> Iterator[Team]:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        rejected = 0
        for seed in range(100):
            rejected += not send_image(url, make_png(make_pixels(seed)), f"noise {seed}").json["accept"]
            if rejected == 3:
                break
        roles = {"anna": "reviewer", HOSTILE: "reviewer", "client": "client"}
        tokens = {name: service.tokens.add(name, role) for name, role in roles.items()}  # type: ignore[arg-type]
        yield Team(url, service, tokens)


def test_reviewer_gets_images_with_what_was_predicted(team: Team) -> None:
    answer = team.post("anna", "lease", count=2).json
    assert len(answer["items"]) == 2
    assert answer["counts"] == {"waiting": 3, "leased": 2, "done": 0, "expired": 0}
    assert answer["pace"] == {"own": None, "everyone": None}
    assert answer["lease_seconds"] == 300
    assert answer["last"] is None
    first, second = answer["items"]
    assert first["confidence"] <= second["confidence"]
    assert first["likely"][0]["label"] == first["label"]
    assert first["likely"][0]["class"] == first["class"] == str(first["label"])
    assert len(first["likely"]) == 9
    assert [view["view"] for view in first["views"]] == VIEWS.split()
    assert first["image"] is True
    assert first["accept"] is False
    assert team.get("anna", "/v1/review/classes").json == {"classes": [str(digit) for digit in range(10)]}


def test_two_reviewers_label_skip_and_undo(team: Team) -> None:
    ours, theirs = team.lease("anna", 2), team.lease(HOSTILE, 2)
    assert len({item["number"] for item in ours + theirs}) == 3
    number, id_ = ours[0]["number"], ours[0]["id"]
    reply = team.post("anna", f"{number}/label", label=7)
    assert (reply.status, reply.json["counts"]["done"]) == (200, 1)
    assert team.post("anna", f"{number}/label", label="7").status == 200, "by name, and once more"
    assert team.post(HOSTILE, f"{number}/label", label=1).code == "already_reviewed"
    assert team.post(HOSTILE, f"{number}/undo").code == "already_reviewed"
    assert team.post(HOSTILE, f"{ours[1]['number']}/label", label=1).code == "lease_lost"
    stored = team.service.reviews.read(number)
    assert (stored.reviewed_label, stored.reviewer) == (7, "anna")
    assert team.post("anna", "lease", count=1).json["last"] == number
    undone = team.post("anna", f"{number}/undo").json
    assert (undone["item"]["number"], undone["item"]["id"], undone["counts"]["done"]) == (number, id_, 0)
    assert team.post("anna", f"{number}/skip").json["counts"]["leased"] == 2
    assert team.post(HOSTILE, "release").json["counts"]["leased"] == 1
    assert [item["skips"] for item in team.lease("anna", 3)] == [0, 0, 1]


def test_label_that_is_no_class_is_an_error(team: Team) -> None:
    (item,) = team.lease("anna", 1)
    labels: list[Any] = [10, -1, "ten", True, 1.5, None, 2**40, []]
    for label in labels:
        reply = team.post("anna", f"{item['number']}/label", label=label)
        assert (reply.status, reply.code) == (422, "invalid"), label
    assert team.service.reviews.counts().done == 0


def test_unknown_number_is_an_error(team: Team) -> None:
    for number in (0, -1, 999, 2**62, 10**30):
        for path in (f"{number}/label", f"{number}/undo", f"{number}/skip"):
            reply = team.post("anna", path, label=1)
            assert (reply.status, reply.code) == (404, "unknown_number"), path
        for path in (f"{number}/image", f"{number}/views/0"):
            assert team.get("anna", f"/v1/review/{path}").status == 404


def test_only_reviewers_see_the_queue(team: Team) -> None:
    (item,) = team.lease("anna", 1)
    number = item["number"]
    for path in ("/v1/review/classes", f"/v1/review/{number}/image", f"/v1/review/{number}/views/0", "/v1/reviews"):
        assert team.get("client", path).code == "permission"
        assert send(f"{team.url}{path}").code == "token"
    for path in ("lease", "release", f"{number}/label", f"{number}/undo", f"{number}/skip"):
        assert team.post("client", path, label=1, count=1).code == "permission"
        assert send(f"{team.url}/v1/review/{path}", b"{}", Content_Type="application/json").code == "token"
    assert send(f"{team.url}/v1/reviews", b"id,label\n", Authorization=f"Bearer {team.tokens['client']}").status == 403
    assert team.service.reviews.counts().done == 0


def test_image_is_served_as_it_came(team: Team) -> None:
    (item,) = team.lease("anna", 1)
    sent = make_png(make_pixels(int(item["id"].removeprefix("noise "))))
    reply = team.get("anna", f"/v1/review/{item['number']}/image")
    assert reply.body == sent
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"


def test_views_are_what_the_classifier_saw(team: Team) -> None:
    (item,) = team.lease("anna", 1)
    pixels = make_pixels(int(item["id"].removeprefix("noise ")))[:, :, 0]
    right, up = np.zeros_like(pixels), np.zeros_like(pixels)
    right[:, 1:], up[:-1] = pixels[:, :-1], pixels[1:]
    for view, expected in (("identity", pixels), ("shift:1,0", right), ("shift:0,-1", up)):
        position = VIEWS.split().index(view)
        reply = team.get("anna", f"/v1/review/{item['number']}/views/{position}")
        assert reply.headers["content-type"] == "image/png", reply.body
        found = np.asarray(Image.open(io.BytesIO(reply.body)).convert("L"))
        np.testing.assert_array_equal(found, expected, err_msg=view)
    for position in (-1, len(VIEWS.split())):
        assert team.get("anna", f"/v1/review/{item['number']}/views/{position}").code == "unknown_view"


def test_image_that_browsers_do_not_show_is_sent_as_png(team: Team) -> None:
    (item,) = team.lease("anna", 1)
    pixels = make_pixels(int(item["id"].removeprefix("noise ")))[:, :, 0]
    tiff = io.BytesIO()
    Image.fromarray(pixels).save(tiff, format="TIFF")
    import sqlalchemy as sa

    from secondlook.serving.database import images

    with team.service.database.write() as connection:
        connection.execute(sa.update(images).values(media_type="image/tiff", content=tiff.getvalue()))
    reply = team.get("anna", f"/v1/review/{item['number']}/image")
    assert reply.headers["content-type"] == "image/png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(reply.body)).convert("L")), pixels)


def test_images_that_are_not_stored_can_be_labeled(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", store_images=False) as (url, service):
        for seed in range(20):
            send_image(url, make_noise(16, seed), f"noise {seed}")
        (item,) = send(f"{url}/v1/review/lease", b'{"count": 1}', Content_Type="application/json").json["items"]
        assert item["image"] is False
        assert send(f"{url}/v1/review/{item['number']}/image").code == "no_image"
        assert send(f"{url}/v1/review/{item['number']}/views/0").code == "no_image"
        path = f"{url}/v1/review/{item['number']}/label"
        assert send(path, b'{"label": 3}', Content_Type="application/json").status == 200
        assert service.reviews.read(item["number"]).reviewed_label == 3


def test_page_escapes_the_name_of_the_reviewer(team: Team) -> None:
    page = team.get(HOSTILE, "/review").body.decode()
    assert HOSTILE not in page
    assert 'data-reviewer="&lt;script&gt;' in page
    assert 'src="/static/review.js' in page


def test_class_names_fit_the_number_of_classes() -> None:
    def find(of_classifier: Any, of_policy: Any, n_classes: int | None) -> Any:
        classifier = SimpleNamespace(class_names=of_classifier, n_classes=n_classes)
        plan = SimpleNamespace(resolved=SimpleNamespace(classifier=classifier))
        deployment = SimpleNamespace(policy=SimpleNamespace(class_names=of_policy))
        service: Any = SimpleNamespace(live=SimpleNamespace(plan=plan, deployment=deployment))
        return find_class_names(service)

    assert find(("a", "b"), ("c", "d"), 2) == ("a", "b")
    assert find(None, ("c", "d"), None) == ("c", "d")
    assert find(("a",), ("c", "d"), 2) == ("c", "d")
    assert find(None, None, 2) is None
