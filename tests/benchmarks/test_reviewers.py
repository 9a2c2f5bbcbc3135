"""Simulated reviewers: errors as stated, and labels counted as by one reviewer after the other."""

import itertools

import numpy as np
import pytest

import reviewers as benchmark
from tests.monitoring.test_audit import PREDICTED, find_label, make_audited, slow_break


@pytest.mark.parametrize("agreeing", [1, 2, 3])
def test_labels_are_counted_one_by_one(agreeing: int) -> None:
    """All sequences of labels of four reviewers, with two wrong classes."""
    labels = np.array(list(itertools.product(range(3), repeat=4)))
    for double in (False, True):
        found, used = benchmark.count_labels(labels, np.full(len(labels), double), agreeing)
        for row, code, count in zip(labels.tolist(), found.tolist(), used.tolist(), strict=True):
            names = tuple(PREDICTED if one == 0 else str(one) for one in row)
            answers = [find_label(names[:n], agreeing, is_double=double) for n in range(1, 5)]
            expected = next(n for n, answer in enumerate(answers, 1) if answer is not None)
            assert count == expected
            verdict = answers[expected - 1]
            assert code == (0 if verdict == PREDICTED else 1 if verdict in ("1", "2") else -1)


@pytest.mark.parametrize(
    ("errors", "about_right", "about_wrong"), [("any class", 1, 1), ("false", 1, 0), ("missed", 0, 1)]
)
def test_reviewers_err_as_stated(errors: str, about_right: int, about_wrong: int) -> None:
    wrong = np.arange(60_000) % 2 == 1
    protocol = benchmark.Protocol(0.1, 0.1, 3, 0.2, errors)
    is_error = protocol.draw_labels(wrong, np.random.default_rng(0)) != wrong[:, None]
    for found, stated in ((is_error[~wrong], about_right), (is_error[wrong], about_wrong)):
        assert found.mean(axis=0) == pytest.approx(np.full(4, 0.1 * stated), abs=0.01)
    found, used = protocol.review(wrong, np.random.default_rng(0))
    assert np.mean(used[~wrong] > 1) == pytest.approx(0.2 + 0.8 * 0.1 * about_right, abs=0.02)
    assert np.mean(found[~wrong] == 1) == pytest.approx(0.00298 * (errors == "false"), abs=0.001)


def test_verdicts_count_all_labels_until_then() -> None:
    audits = benchmark.Audits.draw("even", 0.1, 60_000, np.random.default_rng(0))
    perfect, confirmed = (
        audits.find_broken(one, np.random.default_rng(1)) for one in (benchmark.PERFECT, benchmark.Protocol(agreeing=3))
    )
    assert perfect.labels is not None
    assert confirmed.labels is not None
    assert perfect.labels < confirmed.labels < 2 * perfect.labels
    assert perfect.most == len(audits.positions)
    audited = make_audited(audits.positions, audits.probabilities, audits.wrong)
    assert slow_break(60_000, audited, 0.01, 0.05) == audits.positions[perfect.labels - 1]
    assert audits.find_held(benchmark.PERFECT, np.random.default_rng(1)).labels is None
    held = benchmark.Audits.draw("even", 0.0, 200_000, np.random.default_rng(0)).find_held(
        benchmark.PERFECT, np.random.default_rng(1)
    )
    assert held.labels is not None
    assert held.labels < held.most
