"""`SelectiveClassifier`: a scikit-learn classifier that predicts a class or rejects the image."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from secondlook.arrays import Float64Array, IntArray
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions.decision import DEFAULT_LEVEL, REJECTED_LABEL, Decisions, make_decisions
from secondlook.decisions.looking import LookedGroup
from secondlook.decisions.plan import Plan
from secondlook.decisions.policy_classifier import ResolvedClassifier, resolve_classifier
from secondlook.diagnosis import ViewChoice, collect_views
from secondlook.errors import ANY, DecisionError, Repair
from secondlook.policies import DEFAULT_DELTA, Guarantee, Policy, Schedule, as_methods, certify, read_policy
from secondlook.predictions import (
    Chunking,
    Execution,
    PredictFrom,
    check_class_names_match,
    check_classes,
)
from secondlook.progress import progress_bar
from secondlook.sources import Source, open_source
from secondlook.specs import short_name
from secondlook.views import AUTO, ViewSet, ViewsLike

QUIET = Execution(progress=False)
SUPPOSED_CLASSES = 1000
"""Number of classes assumed for memory before the first prediction."""


class NotFittedError(DecisionError, SklearnNotFittedError):  # type: ignore[misc]  # scikit-learn has no types
    """A `SelectiveClassifier` that has no policy and was not fitted."""


class SelectiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that predicts a class if its confidence is high enough, and otherwise rejects the image (-1).

    Pass a policy to use it at once, or call `fit` with labeled images. Images are anything that `open_source` accepts:
    an array uint8 or float32 [N, H, W, C], a single image, a list of images, the spec of a source, a data set. Like
    every scikit-learn estimator, it loads and checks nothing before its first use and can be cloned.

    Parameters
    ----------
    classifier
        A classifier, or anything that `load_classifier` accepts.
    policy
        A policy or the path of its file; its settings replace `views`, `method`, `method_options`, `predict_from`,
        `top_k` and `adaptive`, and its guarantee replaces `risk` and `delta`.
    views, method, method_options
        Views, confidence method and its options. "auto" chooses views that suit the classifier and the images; the
        default method is 'blend'. From a list of methods, `fit` chooses the one with the largest coverage; they share
        `delta`.
    risk, delta
        Largest error rate among accepted images, and failure probability of this guarantee.
    predict_from, top_k
        Whether classes are predicted from the image itself or from the mean over views, and the number of classes.
    adaptive
        Whether to stop looking at an image once it is decided. True fits a schedule; a given schedule must have been
        fitted to other images.
    allow_mismatch
        Whether to use the policy with a classifier that it was not made for, without a guarantee.
    execution
        Where and how to classify; without progress bars by default.

    Attributes
    ----------
    classifier_
        The loaded classifier.
    policy_
        The policy in force; without a guarantee if it was made for another classifier.
    views_
        The views of the policy, in the order of looks if it is adaptive.
    view_choice_
        How `fit` chose the views; None if they were given.
    classes_, n_classes_
        The classes 0 .. C - 1, and their number C; known after the first prediction, or from the class names.
    """

    # scikit-learn expects a constructor that only stores its arguments.
    _plan: Plan | None = None
    _n_classes: int | None = None
    view_choice_: ViewChoice | None = None

    def __init__(
        self,
        classifier: object,
        policy: Policy | str | Path | None = None,
        *,
        views: ViewsLike = AUTO,
        method: str | Sequence[str] | None = None,
        risk: float = 0.05,
        delta: float = DEFAULT_DELTA,
        predict_from: PredictFrom = "image",
        top_k: int = 1,
        method_options: dict[str, object] | None = None,
        adaptive: bool | Schedule = False,
        allow_mismatch: bool = False,
        execution: Execution = QUIET,
    ) -> None:
        self.classifier = classifier
        self.policy = policy
        self.views = views
        self.method = method
        self.risk = risk
        self.delta = delta
        self.predict_from = predict_from
        self.top_k = top_k
        self.method_options = method_options
        self.adaptive = adaptive
        self.allow_mismatch = allow_mismatch
        self.execution = execution

    @property
    def classifier_(self) -> Classifier:
        """The loaded classifier."""
        return self._get_plan().resolved.classifier

    @property
    def policy_(self) -> Policy:
        """The policy in force."""
        return self._get_plan().policy

    @property
    def views_(self) -> ViewSet:
        """The views of the policy."""
        return ViewSet(list(self.policy_.views))

    @property
    def n_classes_(self) -> int:
        """The number of classes."""
        n_classes = self._n_classes or self.classifier_.n_classes or len(self.policy_.class_names or ())
        if not n_classes:
            raise NotFittedError("the number of classes is unknown before the first prediction; call predict first.")
        return n_classes

    @property
    def classes_(self) -> IntArray:
        """The classes 0 .. C - 1. int64 [C]"""
        return np.arange(self.n_classes_)

    def fit(self, images: Any, labels: ArrayLike | None = None) -> Self:
        """Choose the threshold on labeled images such that `risk` is guaranteed; the classifier stays unchanged.

        To choose views, or to fit a method or a schedule, a quarter of the images is reserved, at most 1,000; the
        threshold is chosen on the others. Among copies of an image, only errors count, so the guarantee holds whether
        or not copies are independent draws.

        If a policy was given, its settings are calibrated again on these images; a schedule or a limit of familiarity
        is fitted again. If the risk cannot be guaranteed, the error states the smallest risk that can be.
        """
        policy = self._load_policy()
        views: ViewsLike = self.views
        if policy is None:
            classifier = load_classifier(self.classifier)
            methods = None if self.method is None else as_methods(self.method)
            settings: dict[str, Any] = {"predict_from": self.predict_from, "top_k": self.top_k}
            settings |= {"adaptive": self.adaptive, "risk": self.risk, "delta": self.delta}
            options: dict[str, Any] = self.method_options or {}
        else:
            classifier, views = self._resolve_classifier(policy).classifier, ViewSet(list(policy.views))
            methods, options = (policy.method,), dict(policy.options)
            guarantee = policy.guarantee or Guarantee(risk=self.risk, delta=self.delta)
            settings = {"predict_from": policy.predict_from, "top_k": policy.top_k}
            settings |= {"risk": guarantee.risk, "delta": guarantee.delta}
            if policy.schedule is not None:
                settings |= {"adaptive": True, "tolerance": policy.schedule.tolerance}
            if policy.familiarity is not None:
                settings |= {"unknown_budget": policy.familiarity.budget}
            if policy.groups:
                risks = {group.shared_by or group.value: group.risk for group in policy.groups}
                settings |= {"groups": policy.shared_classes or "class", "risk": risks}
        classifier = classifier.on_device(self.execution.device)
        source = classifier.open_labeled(images, labels)
        preds, tuning, choice = collect_views(
            classifier, source, views, top_k=settings["top_k"], execution=self.execution
        )
        certified = certify(
            preds,
            methods,
            duplicates=[source.ids[index] for index in source.find_duplicates()],
            tuning=tuning if choice and len(tuning) else None,
            **settings,
            **options,
        )
        if not certified.certified:
            raise DecisionError(f"{certified.shortfall}.")
        self._plan = Plan(certified, ResolvedClassifier(classifier, None), self.execution)
        self._n_classes, self.view_choice_ = preds.n_classes, choice
        return self

    def predict(self, images: Any) -> IntArray:
        """Return class indices of accepted images, and -1 for rejected images. int64 [N], or [N, k] for top_k > 1"""
        decisions = self.decide(images, level=None)
        return np.where(decisions.accept, decisions.labels.T, REJECTED_LABEL).T

    def predict_proba(self, images: Any) -> Float64Array:
        """Return the probability of each class, from the image itself or the mean over views. float64 [N, C]"""
        views = slice(0, 1) if self.policy_.predict_from == "image" else slice(None)
        positions, means = [], []
        for group in self._look(open_source(images).without_labels()):
            positions.append(group.positions)
            means += [block[:, views].mean(axis=1) for _, block in group.preds.blocks()]
        probabilities: Float64Array = np.concatenate(means)[np.argsort(np.concatenate(positions))]
        return probabilities

    def confidence(self, images: Any) -> Float64Array:
        """Return the confidence of each prediction, by the method of the policy. float64 [N]"""
        return self.decide(images, level=None).confidence

    def decide(self, images: Any, *, level: float | None = DEFAULT_LEVEL, seed: int = 0) -> Decisions:
        """Return predicted class, confidence, interval, decision and number of looks of each image.

        `level` and `seed` are the confidence level and the random seed of the interval; None omits the interval.
        """
        # Folders of new images may not be classes.
        return self._decide(open_source(images).without_labels(), level, seed)

    def score(self, images: Any, labels: ArrayLike | None = None) -> float:
        """Return the fraction of images that are accepted and predicted correctly.

        A rejected image counts as wrong, so this is the accuracy of `predict`: coverage times accuracy among accepted
        images. For top_k > 1, a prediction is correct if the label is among the top-k classes.
        """
        source = self.classifier_.open_labeled(images, labels)
        if source.labels is None:
            fault = f"score needs labeled images, but {source.spec!r} has no labels"
            raise DecisionError(fault, repair=Repair("pass {labels}", labels=ANY))
        decisions = self._decide(source)
        label_of = dict(zip(source.ids, source.labels.tolist(), strict=True))
        known = np.array([label_of[id_] for id_ in decisions.ids])
        hits = (decisions.labels.reshape(len(known), -1) == known[:, None]).any(axis=1)
        return float((hits & decisions.accept).mean())

    def set_params(self, **params: Any) -> Self:
        """Set parameters and discard the fitted state, which belongs to the previous ones."""
        super().set_params(**params)
        self._plan = self._n_classes = self.view_choice_ = None
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self.policy is not None or self._plan is not None

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy with the same classifier.

        scikit-learn would copy the classifier, which fails for sessions and handles, and unfit an estimator.
        """
        return type(self)(**self.get_params(deep=False))

    def _get_plan(self) -> Plan:
        """Return the plan in force; a given policy and its classifier are loaded at first use."""
        if self._plan is None:
            policy = self._load_policy()
            if policy is None:
                repair = Repair("pass {policy}, or call fit first", policy=ANY)
                raise NotFittedError("this SelectiveClassifier has no policy yet", repair=repair)
            resolved = self._resolve_classifier(policy).on_device(self.execution.device)
            self._plan = Plan(policy, resolved, self.execution)
        return self._plan

    def _load_policy(self) -> Policy | None:
        return read_policy(self.policy) if isinstance(self.policy, str | Path) else self.policy

    def _resolve_classifier(self, policy: Policy) -> ResolvedClassifier:
        return resolve_classifier(policy, load_classifier(self.classifier), allow_mismatch=self.allow_mismatch)

    def _decide(self, source: Source, level: float | None = None, seed: int = 0) -> Decisions:
        return Decisions.join(
            (group.positions, make_decisions(self.policy_, group.preds, level=level, seed=seed))
            for group in self._look(source)
        )

    def _look(self, source: Source) -> Iterator[LookedGroup]:
        """Yield predictions for a few images at a time, by number of looks."""
        plan = self._get_plan()
        check_class_names_match(plan.members, source)
        # No extra forward pass to find the number of classes: it would double the time for a single image.
        n_classes = self._n_classes or self.classifier_.n_classes or SUPPOSED_CLASSES
        n_outputs = n_classes * len(plan.members)
        chunking = Chunking(len(source), plan.choose_chunk_rows(plan.read_first_image(source), n_outputs))
        chunks = [(number, chunking.indices_of(number)) for number in chunking.numbers]
        total, size = len(source) * plan.progress_per_image, self.execution.batch_size
        name = short_name(plan.classifier.name)
        with (
            progress_bar(name, total, "images", enabled=self.execution.progress) as advance,
            closing(plan.look_at_chunks(source, chunks, batch_size=size, advance=advance)) as looked,
        ):
            for chunk in looked:
                for group in chunk.groups:
                    if self._n_classes != group.preds.n_classes:
                        check_classes(plan.classifier.name, source, group.preds.n_classes)
                        self._n_classes = group.preds.n_classes
                    yield group._replace(positions=chunk.read.indices[group.positions])
