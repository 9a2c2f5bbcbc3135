"""The CSV files of a report: texts that come from the data are not formulas."""

import csv
import io

import numpy as np

from secondlook.predictions import Predictions
from secondlook.report.findings import compute_findings
from secondlook.report.study import build_study
from secondlook.report.writer import render_tables
from secondlook.tables import unescape_formula


def test_texts_of_the_data_are_not_formulas(preds: Predictions) -> None:
    names = ("=cat", "+dog", "-bird", "@frog")
    hostile = Predictions(
        probabilities=preds.probabilities,
        views=preds.views,
        labels=preds.labels,
        class_names=names,
        ids=[f"=HYPERLINK({number})" for number in range(len(preds))],
    )
    study = build_study(hostile, methods=["msr", "mean"], resamples=20)
    findings = compute_findings(study, delta=0.1)
    files = dict(render_tables(findings, {"=fact": "@value"}))
    texts = 0
    for content in files.values():
        for row in csv.reader(io.StringIO(content.decode(), newline="")):
            for cell in row:
                texts += cell.startswith("'")
                assert not cell.startswith(("=", "+", "@", "\t", "\r"))
                assert not cell.startswith("-") or np.isfinite(float(cell)), "only numbers start with a minus sign"
    assert texts > 10
    classes = {unescape_formula(line.split(",")[0]) for line in files["classes.csv"].decode().splitlines()[1:]}
    assert classes <= set(names)
    assert classes
