"""Several reviewers over HTTP: second opinions, search, history, corrections, withdrawals and agreement."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secondlook.serving import Client, ServiceOptions
from tests.serving.running import Digits, Reply, make_noise, send, send_image, serve
from tests.serving.test_review import Team, read_csv

ROLES: dict[str, Any] = {"anna": "reviewer", "ben": "reviewer", "cleo": "reviewer", "ada": "admin", "client": "client"}


def fill(url: str, service: Any, count: int) -> None:
    """Send noise until some images wait for a review."""
    seed = 0
    while service.reviews.counts().waiting < count:
        send_image(url, make_noise(seed=seed), f"noise {seed}")
        seed += 1


@pytest.fixture
def team(digits: Digits, tmp_path: Path) -> Iterator[Team]:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        fill(url, service, 4)
        yield Team(url, service, {name: service.tokens.add(name, role) for name, role in ROLES.items()})


def find(team: Team, who: str = "ada", **query: Any) -> list[dict[str, Any]]:
    """Return all images of a search, page by page."""
    items, before = [], None
    while True:
        values = query | ({} if before is None else {"before": before})
        body = team.get(who, "/v1/review/items?" + "&".join(f"{name}={value}" for name, value in values.items())).json
        items += body["items"]
        if (before := body["next"]) is None:
            return items


def read_history(team: Team, who: str, number: int) -> list[tuple[Any, ...]]:
    found = team.get(who, f"/v1/review/{number}/history").json["events"]
    return [(one["by"], one["action"], one["label"], one["before"], one["comment"]) for one in found]


class TestSecondOpinions:
    def test_an_escalated_image_goes_to_another_reviewer_first(self, team: Team) -> None:
        numbers = [item["number"] for item in team.lease("anna", 4)]
        last = numbers[-1]
        for _ in range(2):
            reply = team.post("anna", f"{last}/escalate", comment="a 4 or a 9?")
            assert (reply.status, reply.json["counts"]["disputed"]) == (200, 1)
        assert team.post("anna", f"{last}/label", label=4).code == "already_reviewed"
        team.post("anna", "release")
        assert [item["number"] for item in team.lease("anna", 4)] == numbers[:-1], "only others get it"
        team.post("anna", "release")
        first, second, *_ = team.lease("ben", 4)
        assert (first["number"], first["second"], second["second"]) == (last, True, False)
        assert (first["asked"], second["asked"]) == ({"by": "anna", "comment": "a 4 or a 9?"}, None)
        assert team.post("ben", f"{last}/label", label=9, comment="sure").json["counts"]["done"] == 1
        assert team.service.reviews.read(last).reviewed_label == 9
        assert team.post("anna", f"{last}/undo").code == "already_reviewed"
        assert read_history(team, "anna", last) == [
            ("anna", "escalate", None, None, "a 4 or a 9?"),
            ("ben", "label", 9, None, "sure"),
        ]

    def test_undo_takes_an_escalation_back(self, team: Team) -> None:
        (item,) = team.lease("anna", 1)
        assert team.post("anna", f"{item['number']}/escalate").status == 200
        undone = team.post("anna", f"{item['number']}/undo").json
        assert undone["item"] == item
        assert undone["counts"]["disputed"] == 0
        assert team.lease("anna", 1) == [item]

    def test_double_review_is_blind_until_three_reviewers_settle_it(self, digits: Digits, tmp_path: Path) -> None:
        with serve(digits.policy, tmp_path / "service", double_review=1.0) as (url, service):
            fill(url, service, 2)
            team = Team(url, service, {name: service.tokens.add(name, role) for name, role in ROLES.items()})
            number, other = (item["number"] for item in team.lease("anna", 2))
            counts = team.post("anna", f"{number}/label", label=3, comment="clearly a 3", seconds=2.5).json["counts"]
            assert (counts["done"], counts["disputed"]) == (0, 1)
            team.post("anna", "release")
            assert [item["number"] for item in team.lease("anna", 2)] == [other]
            team.post("anna", "release")
            seen = next(item for item in team.lease("ben", 2) if item["number"] == number)
            assert (seen["second"], seen["asked"]) == (False, None), "as if nobody had seen it"
            assert [event[2:] for event in read_history(team, "ben", number)] == [(None, None, None)]
            assert [event[2:] for event in read_history(team, "anna", number)] == [(3, None, "clearly a 3")]
            assert {item["comment"] for item in find(team, "ben")} == {None}
            assert {row["comment"] for row in read_csv(team.get("ben", "/v1/reviews").body)} == {""}
            (shown,) = find(team, "anna", reviewer="me")
            assert (shown["number"], shown["state"], shown["label"], shown["labels"]) == (number, "disputed", 3, 1)
            assert {item["label"] for item in find(team, "ben")} == {None}
            team.post("ben", f"{number}/label", label=8)
            team.post("ben", "release")
            first, *_ = team.lease("cleo", 2)
            assert (first["number"], first["second"], first["asked"]) == (number, True, None)
            assert team.post("cleo", f"{number}/label", label=8).json["counts"]["done"] == 1
            assert service.reviews.read(number).reviewed_label == 8
            assert len(read_history(team, "ben", number)) == 3
            rows = read_csv(team.get("ben", "/v1/reviews?state=done").body)
            assert [(row["label"], row["reviewer"], row["label_count"]) for row in rows] == [("8", "cleo", "3")]

    def test_a_wrong_audit_takes_three_reviewers(self, digits: Digits, tmp_path: Path) -> None:
        with serve(digits.policy, tmp_path / "service", audit=1.0, reviewer_error=0.03) as (url, service):
            decided = [send_image(url, file, f"image {place}").json for place, file in enumerate(digits.files[:12])]
            predicted = {one["id"]: one["label"] for one in decided if one["accept"]}
            team = Team(url, service, {name: service.tokens.add(name, role) for name, role in ROLES.items()})
            right, wrong, unclear, *_ = team.post("anna", "lease", count=9, audits=True).json["items"]
            label = (predicted[wrong["id"]] + 1) % 10
            team.post("anna", f"{right['number']}/label", label=predicted[right["id"]])
            team.post("anna", f"{unclear['number']}/label", label="cannot tell")
            counts = team.post("anna", f"{wrong['number']}/label", label=label).json["counts"]
            assert (counts["done"], counts["disputed"]) == (2, 1)
            team.post("anna", "release")
            for who in ("ben", "cleo"):
                assert wrong["id"] not in service.reviews.labels([1])
                seen = team.post(who, "lease", count=9, audits=True).json["items"][0]
                assert seen == wrong, "still blind, and like any audit"
                team.post(who, f"{wrong['number']}/label", label=label)
                team.post(who, "release")
            assert service.reviews.labels([1])[wrong["id"]] == label
            service.options = replace(service.options, reviewer_error=0.0)
            (other,) = team.post("ben", "lease", count=1, audits=True).json["items"]
            team.post("ben", f"{other['number']}/label", label="bad image")
            assert service.reviews.counts().disputed == 1
            service.deploy(service.live.deployment.policy)
            assert service.reviews.counts().disputed == 0, "one label is enough if reviewers do not err"


class TestTrail:
    def test_images_are_found_by_state_label_reviewer_and_name(self, team: Team) -> None:
        a, b, c, d = (item["number"] for item in team.lease("anna", 4))
        team.post("anna", f"{b}/label", label=3, comment="sure")
        team.post("anna", f"{a}/label", label="bad image")
        team.post("anna", f"{d}/escalate")
        names = {number: team.service.reviews.read(number).id for number in (a, b, c, d)}

        def list_numbers(**query: Any) -> list[int]:
            return [item["number"] for item in find(team, "anna", **query)]

        for limit in (1, 2, 3, 100):
            assert list_numbers(limit=limit) == [d, a, b, c]
        assert list_numbers(state="done") == [a, b]
        assert list_numbers(state="waiting") == [d, c]
        assert list_numbers(state="disputed") == [d]
        assert list_numbers(state="expired") == []
        assert list_numbers(audits="true") == []
        assert (list_numbers(label="3"), list_numbers(label="bad%20image"), list_numbers(label=4)) == ([b], [a], [])
        assert list_numbers(reviewer="me") == list_numbers(reviewer="anna") == [d, a, b]
        assert list_numbers(reviewer="ben") == []
        assert list_numbers(query=names[c].replace(" ", "%20").upper())[-1] == c
        assert list_numbers(query="%25") == list_numbers(query="_") == [], "no wildcards"
        found = {item["number"]: item for item in find(team)}
        assert found[b] == {
            "number": b, "id": names[b], "name": None, "image": True, "audit": False, "state": "done",
            "label": 3, "class": "3", "reviewer": "anna", "reviewed_at": found[b]["reviewed_at"],
            "comment": "sure", "labels": 1,
        }  # fmt: skip
        for query in ("limit=0", "limit=101", "state=no", "before=x", "before=-1", "label=ten", "query=" + "x" * 201):
            assert team.get("anna", f"/v1/review/items?{query}").status == 422, query

    def test_the_labeller_and_an_admin_correct_a_label(self, team: Team) -> None:
        number, *_ = team.lease_one()
        assert team.post("anna", f"{number}/correct", label=3).code == "not_labeled"
        team.post("anna", f"{number}/label", label=3)
        assert team.post("ben", f"{number}/correct", label=4).code == "not_labeled"
        for _ in range(2):
            reply = team.post("anna", f"{number}/correct", label=4, comment="slipped")
            assert (reply.status, reply.json["counts"]["done"]) == (200, 1)
        for _ in range(2):
            assert team.post("ada", f"{number}/correct", label=5).status == 200
        assert team.post("anna", f"{number}/correct", label=6).status == 200, "kept, but not in force"
        stored = team.service.reviews.read(number)
        assert (stored.reviewed_label, stored.reviewer, stored.label_count) == (5, "ada", 1)
        assert read_history(team, "cleo", number) == [
            ("anna", "label", 3, None, None),
            ("anna", "correct", 4, 3, "slipped"),
            ("ada", "decide", 5, 4, None),
            ("anna", "correct", 6, 4, None),
        ]

    def test_an_admin_withdraws_all_labels_of_a_reviewer(self, team: Team) -> None:
        a, b, c, d = (item["number"] for item in team.lease("anna", 4))
        for number in (a, b):
            team.post("anna", f"{number}/label", label=3)
        team.post("anna", f"{c}/escalate")
        team.post("anna", "release")
        team.post("ben", f"{d}/label", label=3)
        assert team.post("ben", "reviewers/anna/withdraw").code == "permission"
        for withdrawn in (3, 0):
            assert team.post("ada", "reviewers/anna/withdraw").json == {"withdrawn": withdrawn}
        counts = team.service.reviews.counts()
        assert (counts.waiting, counts.disputed, counts.done) == (3, 0, 1)
        assert read_history(team, "ada", a)[1:] == [("ada", "withdraw", None, 3, "of anna")]
        assert {item["number"] for item in team.lease("anna", 4)} == {a, b, c}

    def test_files_add_labels_of_several_reviewers(self, team: Team) -> None:
        ids = [team.service.reviews.read(item["number"]).id for item in team.lease("anna", 4)]
        rows = [(ids[0], 3, "x-ray desk"), (ids[0], 3, "ben"), (ids[1], 3, "ben"), (ids[1], 4, "cleo"), (ids[2], 5, "")]
        file = "\n".join(["id,label,reviewer", *(",".join(map(str, row)) for row in rows)]).encode()

        def send_file(who: str, content: bytes) -> Reply:
            return send(f"{team.url}/v1/reviews", content, Authorization=f"Bearer {team.tokens[who]}")

        assert send_file("anna", file).code == "permission", "names others"
        for new in (5, 0):
            assert send_file("ada", file).json == {"labels": 5, "new": new}
        assert team.service.reviews.labels([1]) == {ids[0]: 3, ids[2]: 5}
        (disputed,) = find(team, state="disputed")
        assert (disputed["id"], disputed["labels"]) == (ids[1], 2)
        assert send_file("ada", file.replace(b"4,cleo", b"7,cleo")).code == "already_reviewed"
        exported = team.get("anna", "/v1/reviews?state=all").body
        assert send_file("anna", exported).json == {"labels": 2, "new": 0}

    def test_only_reviewers_use_the_trail_and_bad_input_is_an_error(self, team: Team) -> None:
        number, *_ = team.lease_one()
        for path in ("items", f"{number}/history", "agreement"):
            assert team.get("client", f"/v1/review/{path}").code == "permission"
        for path in (f"{number}/escalate", f"{number}/correct", "reviewers/anna/withdraw"):
            assert team.post("client", path, label=1).code == "permission"
        for path in ("999/escalate", "999/correct"):
            assert team.post("ada", path, label=1).code == "unknown_number"
        assert team.get("anna", "/v1/review/999/history").code == "unknown_number"
        bad: list[dict[str, Any]] = [{"comment": "x" * 1001}, {"comment": "\0"}, {"comment": "\ud800"}, {"comment": 1}]
        for body in [*bad, {"seconds": -1}, {"seconds": "fast"}, {"seconds": float("nan")}]:
            assert team.post("anna", f"{number}/label", label=1, **body).status == 422, body
        assert team.post("anna", f"{number}/label", label=1, comment=" \n<b>ünïcode</b> 🙂").status == 200
        assert read_history(team, "anna", number)[0][-1] == " \n<b>ünïcode</b> 🙂"


def test_agreement_of_reviewers(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", double_review=1.0, reviewer_error=0.01) as (url, service):
        fill(url, service, 4)
        team = Team(url, service, {name: service.tokens.add(name, role) for name, role in ROLES.items()})
        empty = team.get("anna", "/v1/review/agreement").json
        assert (empty["reviewers"], empty["alpha"], empty["error"]["estimate"]) == ([], None, None)
        numbers = [item["number"] for item in team.lease("anna", 4)]
        for number, label, seconds in zip(numbers, (1, 1, 2, 2), (0.5, 0.9, 3.0, 4.0), strict=True):
            team.post("anna", f"{number}/label", label=label, seconds=seconds)
        assert len(team.lease("ben", 4)) == 4
        for number, label in zip(numbers, (1, 2, 2, 2), strict=True):
            team.post("ben", f"{number}/label", label=label)
        team.post("ben", f"{numbers[1]}/correct", label=1)
        found = team.get("anna", "/v1/review/agreement").json
        assert found["reviewers"][0] == {
            "name": "anna", "labels": 4, "pairs": 4, "agreement": 0.75, "seconds": 1.95, "fast": 0.5,
        }  # fmt: skip
        assert found["reviewers"][1]["seconds"] is None
        assert found["pairs"] == [{"reviewers": ["anna", "ben"], "images": 4, "agreement": 0.75, "kappa": 0.5}]
        assert [(row["class"], row["pairs"], row["agreement"]) for row in found["classes"]] == [
            ("1", 2, pytest.approx(2 / 3)),
            ("2", 3, 0.8),
        ]
        assert (found["error"]["images"], found["error"]["disagreements"], found["error"]["bound"]) == (4, 1, 0.01)


class Audits:
    """All audits of a team, with the true classes, and what the monitor says about them."""

    def __init__(self, team: Team, truth: dict[str, int]) -> None:
        self.team, self.truth = team, truth

    def label(self, who: str, *, wrong: int = 0, limit: int = 1000) -> int:
        """Label what a reviewer is offered, with a wrong class for every `wrong`-th image; return the number."""
        done = 0
        while done < limit:
            items = self.team.post(who, "lease", count=min(50, limit - done), audits=True).json["items"]
            if not items:
                break
            for item in items:
                done += 1
                label = (self.truth[item["id"]] + bool(wrong and done % wrong == 0)) % 10
                assert self.team.post(who, f"{item['number']}/label", label=label, seconds=2).status == 200
        return done

    def judge(self) -> dict[str, Any]:
        self.team.service.watcher.look()
        return dict(self.team.get("ada", "/v1/status?timeline=false").json["monitor"])


@contextmanager
def open_audits(digits: Digits, folder: Path, **options: Any) -> Iterator[Audits]:
    """Serve a policy that audits everything."""
    with serve(digits.policy, folder, audit=1.0, **options) as (url, service):
        for record in service.tokens.read().values():
            service.tokens.remove(record.name)
        tokens = {name: service.tokens.add(name, role) for name, role in ROLES.items()}
        with Client(url, token=tokens["client"]) as client:
            decided = client.decide_many(digits.files[:300], ids=[f"image {place}" for place in range(300)])
        # Few predictions are wrong, whatever the digits show.
        truth = {one.id: (one.label + (place % 100 == 50)) % 10 for place, one in enumerate(decided)}
        yield Audits(Team(url, service, tokens), truth)


def test_from_two_reviewers_to_the_verdict(digits: Digits, tmp_path: Path) -> None:
    """The overlap reveals a reviewer who errs; without those labels, and despite rare errors, the guarantee holds."""
    with open_audits(digits, tmp_path / "service", double_review=0.25) as audits:
        team, total = audits.team, audits.judge()["auditable"]
        assert audits.label("anna", wrong=4) == total
        found = audits.judge()["audit"]
        assert (found["verdict"], found["labels"] + found["pending"]) == ("broken", total)
        n_double = total - found["labels"]
        assert audits.label("ben") == n_double > 30, "only images for two reviewers are left"
        found = team.get("ada", "/v1/review/agreement").json
        disputed = team.service.reviews.counts().disputed
        assert (found["error"]["images"], found["error"]["disagreements"]) == (n_double, disputed)
        assert found["error"]["low"] > 0.02
        assert {item["second"] for item in team.post("cleo", "lease", count=50, audits=True).json["items"]} == {True}
        team.post("cleo", "release")

        assert team.post("ada", "reviewers/anna/withdraw").json["withdrawn"] == total
        assert audits.judge()["audit"]["verdict"] == "undecided"
        assert audits.label("ben", limit=60) == 60
        before = audits.judge()["audit"]
        item, unclear, odd = find(team, "ben", reviewer="me", state="done", audits="true", limit=3)[:3]
        label = audits.truth[item["id"]]
        team.post("ben", f"{item['number']}/correct", label=(label + 1) % 10, comment="a slip")
        slipped = audits.judge()["audit"]
        assert slipped["estimate"] > before["estimate"]
        team.post("ben", f"{item['number']}/correct", label=label)
        assert audits.judge()["audit"] == before, "a comment changes nothing"
        team.post("ben", f"{unclear['number']}/correct", label="cannot tell")
        team.post("ben", f"{odd['number']}/correct", label="none of these")
        changed = audits.judge()
        assert (changed["audit"]["labels"], changed["audit"]["cannot_tell"]) == (before["labels"] - 1, 1)
        assert changed["unknown"]["none_of_these"] == 1
        team.post("ben", f"{odd['number']}/correct", label="bad image")
        changed = audits.judge()
        assert changed["audit"]["estimate"] > before["estimate"], "the prediction is wrong"
        assert changed["unknown"]["none_of_these"] == 0, "but the image is not unknown"
        (asked,) = team.post("ben", "lease", count=1, audits=True).json["items"]
        team.post("ben", f"{asked['number']}/escalate", comment="?")
        assert audits.judge()["audit"] == changed["audit"], "not reviewed"
        for image in (unclear, odd):
            team.post("ada", f"{image['number']}/correct", label=audits.truth[image["id"]])
        audits.label("ben")
        audits.label("cleo")
        assert team.service.reviews.counts().audits == 0
        judged = audits.judge()["audit"]
        assert (judged["verdict"], judged["labels"], judged["reviewer_error"]) == ("holds", total, 0.0)

    with open_audits(digits, tmp_path / "service", double_review=0.25, reviewer_error=0.03) as audits:
        doubted = audits.judge()["audit"]
        n_wrong = round(judged["estimate"] * total)
        assert (doubted["reviewer_error"], doubted["pending"]) == (0.03, n_wrong), "more reviewers must confirm them"
        assert audits.team.service.reviews.counts().disputed == n_wrong
        for who in ("anna", "cleo", "ben"):
            audits.label(who)
        again = audits.judge()["audit"]
        assert (again["labels"], again["estimate"]) == (total, judged["estimate"])
        assert (again["verdict"], again["high"] > judged["high"]) == ("holds", True)
        assert ServiceOptions(tmp_path / "service").read_reviews().reviewer_error == 0.03
