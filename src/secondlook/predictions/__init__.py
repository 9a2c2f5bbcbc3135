"""The answers of a classifier to every view of every image: collected once, kept on disk, read lazily."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.predictions.asked_views import AskedViews, as_view_set, as_view_set_with_identity
    from secondlook.predictions.batching import BatchSize, chosen_batch_size, rows_per_part
    from secondlook.predictions.checks import (
        ClassNamesWarning,
        check_numbers,
        check_predict_from,
        check_top_k,
        chosen_images,
    )
    from secondlook.predictions.collecting import UNIT, collect
    from secondlook.predictions.division import Division
    from secondlook.predictions.flow import Job, first_image, run_flow
    from secondlook.predictions.joined import JoinedTable, joined
    from secondlook.predictions.leading import leading_classes
    from secondlook.predictions.manifest import ensemble_name, run_name
    from secondlook.predictions.part import DamagedPartWarning, Part
    from secondlook.predictions.predictions import PredictFrom, Predictions
    from secondlook.predictions.store import Run
    from secondlook.predictions.table import rows_per_block

_MODULES = {
    "AskedViews": "secondlook.predictions.asked_views",
    "BatchSize": "secondlook.predictions.batching",
    "PredictFrom": "secondlook.predictions.predictions",
    "ClassNamesWarning": "secondlook.predictions.checks",
    "DamagedPartWarning": "secondlook.predictions.part",
    "Division": "secondlook.predictions.division",
    "Job": "secondlook.predictions.flow",
    "JoinedTable": "secondlook.predictions.joined",
    "Part": "secondlook.predictions.part",
    "Predictions": "secondlook.predictions.predictions",
    "Run": "secondlook.predictions.store",
    "UNIT": "secondlook.predictions.collecting",
    "as_view_set": "secondlook.predictions.asked_views",
    "as_view_set_with_identity": "secondlook.predictions.asked_views",
    "check_predict_from": "secondlook.predictions.checks",
    "check_numbers": "secondlook.predictions.checks",
    "check_top_k": "secondlook.predictions.checks",
    "chosen_batch_size": "secondlook.predictions.batching",
    "chosen_images": "secondlook.predictions.checks",
    "collect": "secondlook.predictions.collecting",
    "ensemble_name": "secondlook.predictions.manifest",
    "first_image": "secondlook.predictions.flow",
    "joined": "secondlook.predictions.joined",
    "leading_classes": "secondlook.predictions.leading",
    "rows_per_block": "secondlook.predictions.table",
    "rows_per_part": "secondlook.predictions.batching",
    "run_flow": "secondlook.predictions.flow",
    "run_name": "secondlook.predictions.manifest",
}

__all__ = [
    "UNIT",
    "AskedViews",
    "BatchSize",
    "ClassNamesWarning",
    "DamagedPartWarning",
    "Division",
    "Job",
    "JoinedTable",
    "Part",
    "PredictFrom",
    "Predictions",
    "Run",
    "as_view_set",
    "as_view_set_with_identity",
    "check_numbers",
    "check_predict_from",
    "check_top_k",
    "chosen_batch_size",
    "chosen_images",
    "collect",
    "ensemble_name",
    "first_image",
    "joined",
    "leading_classes",
    "rows_per_block",
    "rows_per_part",
    "run_flow",
    "run_name",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
