"""`SelectiveClassifier`: a scikit-learn classifier that predicts a class or rejects the image."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions.adaptive_looks import AdaptiveLooks, LookedGroup, choose_chunk_rows, take_all_looks
from secondlook.decisions.policy_classifier import MemberOutputs, ResolvedClassifier, resolve_classifier
from secondlook.decisions.rows import REJECTED_LABEL, Decisions, compute_confidence, join_decisions, make_decisions
from secondlook.diagnosis import ViewChoice, collect_views
from secondlook.errors import DecisionError
from secondlook.policies import (
    DEFAULT_DELTA,
    DEFAULT_TOLERANCE,
    Guarantee,
    Policy,
    Rule,
    Schedule,
    as_methods,
    certify,
)
from secondlook.predictions import (
    Chunking,
    CollectJob,
    Execution,
    PredictFrom,
    Predictions,
    check_class_names_match,
    check_classes,
    choose_batch_size,
    collect,
    make_inference,
    read_chunks,
    read_first_image,
)
from secondlook.progress import progress_bar
from secondlook.sources import Source, Subset, open_labeled, open_source
from secondlook.specs import short_name
from secondlook.views import AUTO, ViewSet, ViewsLike

BLOCK_IMAGES = 1024
"""Number of images that are predicted at once, so that memory does not grow with the number of images."""

Values = TypeVar("Values", bound=Array)


class NotFittedError(DecisionError, SklearnNotFittedError):  # type: ignore[misc]  # scikit-learn has no types
    """A `SelectiveClassifier` that has no policy and was not fitted."""


@dataclass
class _Fitted:
    """The loaded classifier and the policy in force; a mismatch voids its guarantee."""

    classifier: Classifier
    policy: Policy
    mismatch: str | None = None
    n_classes: int | None = None
    view_choice: ViewChoice | None = None


class SelectiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that predicts a class if its confidence is high enough, and otherwise rejects the image (-1).

    Pass a policy, which makes it usable at once, or call `fit` with labeled images. Images are anything
    that `open_source` accepts: an array uint8 or float32 [N, H, W, C], a single image, a list of them, the spec of a
    source, a data set. Like every estimator of scikit-learn it loads and checks nothing before its first use, and can
    be cloned.

    Parameters
    ----------
    classifier
        A classifier, or whatever `load_classifier` accepts.
    policy
        A policy or the path of its file; its settings replace `views`, `method`, `method_options`, `predict_from`,
        `top_k`, `adaptive`, `tolerance` and `max_looks`, and its guarantee replaces `risk` and `delta`.
    views, method, method_options
        Views, confidence method and its options. "auto" chooses views that suit the classifier and the images; the
        default method is 'blend'. Of a list of methods, `fit` chooses the one with the largest coverage; they share
        `delta`.
    risk, delta
        Largest error rate among accepted images, and failure probability of this guarantee.
    predict_from, top_k
        Whether classes are predicted from the image itself or from the mean over views, and how many of them.
    adaptive, tolerance, max_looks
        Whether an image is looked at only until it is decided: True fits a schedule, a given one must have been fitted
        to other images. For True: the fraction of images whose decision may differ from that with all looks, and the
        largest number of looks, by default all views.
    allow_mismatch
        Whether to use the policy with a classifier that it was not made for; nothing is guaranteed then.
    progress
        Whether to show progress bars.
    device
        Where to classify: "auto", "cpu", "cuda" (all GPUs) or "cuda:N", see `collect`.

    Attributes
    ----------
    classifier_
        The loaded classifier.
    policy_, rule_
        The policy in force, and its rule.
    views_
        The views of the policy, in the order of looks if it is adaptive.
    view_choice_
        How `fit` chose the views; None if they were given.
    classes_, n_classes_
        The classes 0 .. C - 1, and their number C; known after the first prediction, or from the class names.
    """

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
        tolerance: float = DEFAULT_TOLERANCE,
        max_looks: int | None = None,
        allow_mismatch: bool = False,
        progress: bool = False,
        device: str = "auto",
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
        self.tolerance = tolerance
        self.max_looks = max_looks
        self.allow_mismatch = allow_mismatch
        self.progress = progress
        self.device = device

    @property
    def classifier_(self) -> Classifier:
        """The loaded classifier."""
        return self._get_fitted().classifier

    @property
    def policy_(self) -> Policy:
        """The policy in force."""
        return self._get_fitted().policy

    @property
    def rule_(self) -> Rule:
        """The rule in force."""
        fitted = self._get_fitted()
        return fitted.policy.rule if fitted.mismatch is None else replace(fitted.policy.rule, guarantee=None)

    @property
    def views_(self) -> ViewSet:
        """The views of the policy."""
        return ViewSet(list(self.policy_.views))

    @property
    def view_choice_(self) -> ViewChoice | None:
        """How `fit` chose the views; None if they were given."""
        return self._get_fitted().view_choice

    @property
    def n_classes_(self) -> int:
        """The number of classes."""
        fitted = self._get_fitted()
        n_classes = fitted.n_classes or fitted.classifier.n_classes or len(fitted.policy.class_names or ())
        if not n_classes:
            raise NotFittedError("the number of classes is unknown before the first prediction; call predict first.")
        return n_classes

    @property
    def classes_(self) -> IntArray:
        """The classes 0 .. C - 1. int64 [C]"""
        return np.arange(self.n_classes_)

    def fit(self, images: Any, labels: ArrayLike | None = None) -> Self:
        """Choose the threshold on labeled images such that `risk` is guaranteed; the classifier stays unchanged.

        Where views are to be chosen, or a method or a schedule is to be fitted, a quarter of the images, at most 1,000,
        is set apart for that, and the threshold is chosen on the others. Duplicate images are counted once, since a
        copy is not another independent draw.

        If a policy was given, its settings are calibrated again on these images, and one with a schedule gets a new
        schedule for its views. If the risk cannot be guaranteed, the message of the error has the smallest risk that
        can be.
        """
        policy = self._load_policy()
        views: ViewsLike
        if policy is None:
            classifier = load_classifier(self.classifier).on_device(self.device)
            views = self.views
            methods = None if self.method is None else as_methods(self.method)
            settings: dict[str, Any] = {"predict_from": self.predict_from, "top_k": self.top_k}
            looking: dict[str, Any] = {name: getattr(self, name) for name in ("adaptive", "tolerance", "max_looks")}
            options: dict[str, Any] = self.method_options or {}
            risk: Any = self.risk
            delta = self.delta
        else:
            classifier, views = self._resolve_classifier(policy).classifier, ViewSet(list(policy.views))
            methods = (policy.method,)
            settings = {"predict_from": policy.predict_from, "top_k": policy.top_k}
            looking = {} if policy.schedule is None else {"adaptive": True, "tolerance": policy.schedule.tolerance}
            options = dict(policy.options)
            guarantee = policy.rule.guarantee or Guarantee(self.risk, self.delta)
            risk, delta = guarantee.risk, guarantee.delta
            if policy.classes is not None:
                risk, settings["groups"] = dict(enumerate(policy.classes.risks)), "class"
        source = open_labeled(images, labels, classifier.class_names)
        execution = Execution(progress=self.progress)
        collected = collect_views(classifier, source, views, top_k=settings["top_k"], execution=execution)
        preds, choice = collected.preds, collected.choice
        rule = certify(
            preds,
            methods,
            risk=risk,
            delta=delta,
            duplicates=[source.ids[index] for index in source.find_duplicates()],
            tuning=collected.tuning if choice and len(collected.tuning) else None,
            **settings,
            **looking,
            **options,
        )
        if not rule.certified:
            raise DecisionError(f"{rule.shortfall}.")
        fitted_policy = Policy.from_rule(
            rule,
            classifier=classifier,
            views=rule.list_views(preds.views.texts),
            data=source.spec,
            data_digest=source.digest,
            class_names=preds.class_names,
        )
        self._fitted: _Fitted | None = _Fitted(classifier, fitted_policy, n_classes=preds.n_classes, view_choice=choice)
        return self

    def predict(self, images: Any) -> IntArray:
        """Return the accepted classes, and -1 for rejected images. int64 [N], or [N, k] for top_k > 1"""
        return join_groups(self._look(images), partial(_predict_accepted, self.rule_))

    def predict_proba(self, images: Any) -> Float64Array:
        """Return the probability of each class, from the image itself or the mean over views. float64 [N, C]"""
        return join_groups(self._look(images), partial(_average_views, self.rule_))

    def confidence(self, images: Any) -> Float64Array:
        """Return the confidence of each prediction, by the method of the rule. float64 [N]"""
        return join_groups(self._look(images), partial(compute_confidence, self.rule_))

    def decide(self, images: Any, *, level: float = 0.95, seed: int = 0) -> Decisions:
        """Return predicted class, confidence, interval, decision and number of looks of each image.

        `level` and `seed` are the confidence level and the random seed of the interval.
        """
        rule = self.rule_
        groups = (
            (positions, make_decisions(rule, preds, level=level, seed=seed)) for positions, preds in self._look(images)
        )
        return join_decisions(groups)

    def score(self, images: Any, labels: ArrayLike | None = None) -> float:
        """Return the fraction of images that are accepted and predicted correctly.

        A rejected image counts as wrong, so this is the accuracy of `predict`: coverage times accuracy among accepted
        images. For top_k > 1, a prediction is correct if the label is among the top-k classes.
        """
        source = open_labeled(images, labels, self.classifier_.class_names)
        if source.labels is None:
            raise DecisionError(f"score needs labeled images, but {source.spec!r} has no labels; pass labels=.")
        label_of = dict(zip(source.ids, source.labels.tolist(), strict=True))
        return float(join_groups(self._look_at_source(source), partial(_find_hits, self.rule_, label_of)).mean())

    def set_params(self, **params: Any) -> Self:
        """Set parameters and discard the fitted state, which belongs to the previous ones."""
        super().set_params(**params)
        self._fitted = None
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self.policy is not None or getattr(self, "_fitted", None) is not None

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy with the same classifier.

        scikit-learn would copy the classifier, which sessions and handles do not allow, and unfit an estimator.
        """
        return type(self)(**self.get_params(deep=False))

    def _get_fitted(self) -> _Fitted:
        """Return the fitted state; a given policy and its classifier are loaded at first use."""
        fitted: _Fitted | None = getattr(self, "_fitted", None)
        if fitted is None:
            policy = self._load_policy()
            if policy is None:
                raise NotFittedError("this SelectiveClassifier has no rule yet; pass policy=, or call fit first.")
            resolved = self._resolve_classifier(policy)
            fitted = self._fitted = _Fitted(resolved.classifier, policy, resolved.mismatch)
        return fitted

    def _load_policy(self) -> Policy | None:
        return Policy.load(self.policy) if isinstance(self.policy, str | Path) else self.policy

    def _resolve_classifier(self, policy: Policy) -> ResolvedClassifier:
        loaded = load_classifier(self.classifier)
        return resolve_classifier(policy, loaded, allow_mismatch=self.allow_mismatch).on_device(self.device)

    def _look(self, images: Any) -> Iterator[LookedGroup]:
        """Yield the predictions of some images at a time; folders of new images need not be classes."""
        return self._look_at_source(open_source(images).without_labels())

    def _look_at_source(self, source: Source) -> Iterator[LookedGroup]:
        looked_at = self._look_adaptively(source) if self.rule_.schedule else self._look_at_all_views(source)
        for group in looked_at:
            self._get_fitted().n_classes = group.preds.n_classes
            yield group

    def _look_at_all_views(self, source: Source) -> Iterator[LookedGroup]:
        for start in range(0, len(source), BLOCK_IMAGES):
            positions = np.arange(start, min(start + BLOCK_IMAGES, len(source)))
            is_whole = len(positions) == len(source)
            block = source if is_whole else Subset(source, positions, source.spec, source.on_error)
            preds = collect(self.classifier_, block, self.views_, progress=self.progress)
            yield LookedGroup(start + np.arange(len(preds)), preds)

    def _look_adaptively(self, source: Source) -> Iterator[LookedGroup]:
        classifier, rule = MemberOutputs(self.classifier_), self.rule_
        check_class_names_match(classifier.members, source)
        image = read_first_image(classifier, source)
        chunking = Chunking(len(source), choose_chunk_rows(image, classifier))
        job = CollectJob(classifier, source, self.views_, choose_batch_size("auto", image, classifier), chunking)
        inference = make_inference(classifier, job.batch_size)
        make_predictions = partial(classifier.as_predictions, class_names=None)
        is_checked = False
        bar = progress_bar(short_name(classifier.name), len(source), "images", enabled=self.progress)
        with bar as advance, closing(read_chunks(job, lambda _: True)) as chunks:
            for chunk in chunks:
                looks = AdaptiveLooks(rule, [source.ids[index] for index in chunk.indices], make_predictions)
                for positions, preds in take_all_looks(looks, chunk.images, inference):
                    if not is_checked:
                        check_classes(classifier.name, source, preds.n_classes)
                        is_checked = True
                    yield LookedGroup(chunk.indices[positions], preds)
                advance(len(chunk.indices) + len(chunk.skipped))


def join_groups(groups: Iterable[LookedGroup], compute: Callable[[Predictions], Values]) -> Values:
    """Compute something for the images of each group, and return it in the order of their positions. [N, ...]"""
    positions, values = zip(*((positions, compute(preds)) for positions, preds in groups), strict=True)
    return cast(Values, np.concatenate(values)[np.argsort(np.concatenate(positions))])


def _predict_accepted(rule: Rule, preds: Predictions) -> IntArray:
    """Return the predicted classes, -1 where rejected. int64 [N], or [N, k] for top_k > 1"""
    predicted = preds.predicted(rule.predict_from, rule.top_k)
    accepted = rule.accept_images(preds, compute_confidence(rule, preds))
    return np.where(accepted.reshape((-1,) + (1,) * (predicted.ndim - 1)), predicted, REJECTED_LABEL)


def _average_views(rule: Rule, preds: Predictions) -> Float64Array:
    """Return the probability of each class, from the image itself or the mean over views. float64 [N, C]"""
    views = slice(0, 1) if rule.predict_from == "image" else slice(None)
    return np.concatenate([block[:, views].mean(axis=1) for _, block in preds.blocks()])


def _find_hits(rule: Rule, label_of: Mapping[str, int], preds: Predictions) -> BoolArray:
    """Return which images are accepted and predicted correctly. bool [N]"""
    predicted = _predict_accepted(rule, preds).reshape(len(preds), rule.top_k)
    labels = np.array([label_of[id_] for id_ in preds.ids])
    hits: BoolArray = (predicted == labels[:, None]).any(axis=1)
    return hits
