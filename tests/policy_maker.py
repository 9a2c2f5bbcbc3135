"""Policies for tests: a threshold, attached to a classifier and its views."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import secondlook as sl
from secondlook.classifiers import Classifier
from secondlook.decisions import Review
from secondlook.policies import Policy, read_policy
from secondlook.predictions import Execution, Predictions


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


def limit_familiarity(policy: Policy, preds: Predictions, share: float = 0.5) -> Policy:
    """Return the policy with a limit of some familiarity that this share of the images does not reach."""
    limit: dict[str, Any] = {"limit": 0.0, "budget": 0.02, "images": 100, "given_up": 2}
    limit["weights"] = (1.0, *np.linspace(-0.1, 0.1, preds.n_classes).tolist())
    values = policy.replace(familiarity=limit).compute_familiarity(preds)
    assert values is not None
    return policy.replace(familiarity={**limit, "limit": float(np.quantile(values, share))})


def score(policy: Policy | str | Path, data: Any, out: str | Path, **options: Any) -> Any:
    """Call `secondlook.score` with settings of `Review` and `Execution` among its own arguments."""
    for kind, name in ((Review, "review"), (Execution, "execution")):
        given = {each.name: options.pop(each.name) for each in fields(kind) if each.name in options}
        if given:
            options[name] = replace(options.get(name, kind()), **given)
    if options.pop("allow_mismatch", False):
        loaded = read_policy(policy) if isinstance(policy, str | Path) else policy
        policy = loaded.bind(options.pop("classifier", None), allow_mismatch=True)
    return sl.score(policy, data, out, **options)
