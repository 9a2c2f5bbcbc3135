"""A classifier that may ask a person: it answers by the rule of a policy, or learns the rule from labeled images."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.classifiers import load_classifier
from secondlook.errors import DecisionError
from secondlook.estimators import confidence as confidence_of
from secondlook.estimators import confidence_interval
from secondlook.predictions import PredictFrom, Predictions, collect
from secondlook.scoring.asked_classifier import resolve_classifier
from secondlook.scoring.decisions import ASK_A_PERSON, Decisions
from secondlook.selective import Policy, Rule, certify
from secondlook.sources import Source, Subset, open_source
from secondlook.views import ViewSet, ViewsLike, as_view_set

IMAGES_AT_ONCE = 1024
"""How many images are looked at before they are decided and forgotten, so that a million need no more memory."""


class SelectiveClassifier:
    """Answers with a class where it is sure enough, and with -1 where a person should look.

    Give a policy, or the settings of one and then `fit` labeled images. Images are uint8 or float32 [N, H, W, C], one
    image [H, W, C], the text of a source, or a source.
    """

    def __init__(
        self,
        classifier: object,
        policy: Policy | str | Path | None = None,
        *,
        views: ViewsLike = "natural",
        method: str = "mean",
        risk: float = 0.05,
        delta: float = 0.05,
        predict_from: PredictFrom = "image",
        top_k: int = 1,
        options: dict[str, object] | None = None,
        allow_mismatch: bool = False,
        progress: bool = False,
    ) -> None:
        self.classifier = load_classifier(classifier)
        self.policy: Policy | None = Policy.load(policy) if isinstance(policy, str | Path) else policy
        made = self.policy
        self._keeps_guarantee = (
            made is None or resolve_classifier(made, self.classifier, allow_mismatch=allow_mismatch).mismatch is None
        )
        self.views: ViewSet = as_view_set(views if made is None else list(made.views))
        self.method = method if made is None else made.method
        self.options: dict[str, object] = dict((options or {}) if made is None else made.options)
        self.predict_from: PredictFrom = predict_from if made is None else made.predict_from
        self.top_k = top_k if made is None else made.top_k
        guaranteed = None if made is None else made.rule.guarantee
        self.risk, self.delta = (risk, delta) if guaranteed is None else (guaranteed.risk, guaranteed.delta)
        self.progress = progress

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        if self.policy is None:
            raise DecisionError("there is no rule to decide by yet; give a policy, or call fit(images, labels) first.")
        return self.policy.rule if self._keeps_guarantee else replace(self.policy.rule, guarantee=None)

    def fit(self, images: Any, labels: ArrayLike | None = None) -> Self:
        """Choose the threshold on labeled images, so that the risk is guaranteed; no weight is changed.

        Where nothing can be guaranteed this is an error, and the sentence says what could be.
        """
        source = _source(images, labels)
        preds = collect(self.classifier, source, self.views, progress=self.progress)
        rule = certify(
            preds,
            self.method,
            risk=self.risk,
            delta=self.delta,
            predict_from=self.predict_from,
            top_k=self.top_k,
            **self.options,
        )
        if not rule.certified:
            raise DecisionError(f"{rule.shortfall}.")
        self.policy = Policy.of(
            rule,
            classifier=self.classifier,
            views=self.views.texts,
            data=source.spec,
            data_digest=source.digest,
            class_names=preds.class_names,
        )
        self._keeps_guarantee = True
        return self

    def predict(self, images: Any) -> IntArray:
        """Return the accepted classes, and -1 for "ask a person". int64 [N], or [N, k] for k > 1"""
        rule = self.rule
        parts = [
            np.where(self._accepted(rule, preds, classes.ndim), classes, ASK_A_PERSON)
            for preds in self._looked_at(images)
            for classes in [preds.predicted(self.predict_from, self.top_k)]
        ]
        return np.concatenate(parts)

    def predict_proba(self, images: Any) -> Float64Array:
        """Return the probability of each class, of the image itself or (by D) the mean over views. float64 [N, C]"""
        seen = slice(0, 1) if self.predict_from == "image" else slice(None)
        return np.concatenate(
            [block[:, seen].mean(axis=1) for preds in self._looked_at(images) for _, block in preds.blocks()]
        )

    def confidence(self, images: Any) -> Float64Array:
        """Return how sure each answer is, by the method of the rule. float64 [N]"""
        return np.concatenate([self._confidence(preds) for preds in self._looked_at(images)])

    def decide(self, images: Any, *, level: float = 0.95, seed: int = 0) -> Decisions:
        """Return label, confidence, interval and decision of each image."""
        rule = self.rule
        ids: list[str] = []
        parts: list[list[Array]] = []
        for preds in self._looked_at(images):
            ids.extend(preds.ids)
            sure = self._confidence(preds)
            ends = (
                confidence_interval(preds, level, seed=seed, predict_from=self.predict_from, top_k=self.top_k)
                if preds.n_outputs > 1
                else ()
            )
            parts.append([preds.predicted(self.predict_from, self.top_k), sure, rule.accept(sure), *ends])
        labels, sure, accept, *ends_of_all = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Decisions(tuple(ids), labels, sure, (ends_of_all[0], ends_of_all[1]) if ends_of_all else None, accept)

    def _confidence(self, preds: Predictions) -> Float64Array:
        return confidence_of(preds, self.method, predict_from=self.predict_from, top_k=self.top_k, **self.options)

    def _accepted(self, rule: Rule, preds: Predictions, dimensions: int) -> Array:
        """Return what is accepted, shaped to choose between rows of classes. bool [N] or [N, 1]"""
        accepted = rule.accept(self._confidence(preds))
        return accepted.reshape((-1,) + (1,) * (dimensions - 1))

    def _looked_at(self, images: Any) -> Iterator[Predictions]:
        source = _source(images, None).without_labels()
        for start in range(0, len(source), IMAGES_AT_ONCE):
            positions = np.arange(start, min(start + IMAGES_AT_ONCE, len(source)))
            whole = len(positions) == len(source)
            part = source if whole else Subset(source, positions, source.spec, source.on_error)
            yield collect(self.classifier, part, self.views, progress=self.progress)


def _source(images: Any, labels: ArrayLike | None) -> Source:
    """Open images; one image [H, W, C] is a batch of one."""
    if isinstance(images, np.ndarray) and images.ndim == 3:
        images = images[None]
    return open_source(images, labels=labels)
