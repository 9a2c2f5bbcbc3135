"""Policies for tests: a threshold, attached to a classifier and its views."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import secondlook as sl
from secondlook.classifiers import Classifier
from secondlook.decisions import Review, ScoreSummary
from secondlook.policies import Policy, read_policy
from secondlook.predictions import Execution


def attach(
    policy: Policy,
    *,
    classifier: Classifier | Any,
    views: tuple[str, ...],
    data: str = "",
    data_digest: str = "",
    class_names: tuple[str, ...] | None = None,
    made: str = "",
) -> Policy:
    """Return a valid policy with the threshold of another one, for a classifier and its views."""
    calibration = policy.calibration and policy.calibration.model_copy(update={"data": data, "digest": data_digest})
    settings = {"views": views, "class_names": class_names, "made": made, "calibration": calibration}
    return policy.replace(classifier=classifier, **settings)


def score(policy: Policy | str | Path, data: Any, out: str | Path, **options: Any) -> ScoreSummary:
    """Call `secondlook.score` with settings of `Review` and `Execution` among its own arguments."""
    for kind, name in ((Review, "review"), (Execution, "execution")):
        given = {each.name: options.pop(each.name) for each in fields(kind) if each.name in options}
        if given:
            options[name] = replace(options.get(name, kind()), **given)
    if options.pop("allow_mismatch", False):
        loaded = read_policy(policy) if isinstance(policy, str | Path) else policy
        policy = loaded.bind(options.pop("classifier", None), allow_mismatch=True)
    return sl.score(policy, data, out, **options)
