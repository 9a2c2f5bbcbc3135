"""The answers of a classifier to every view of every image: collected once, kept on disk, read lazily."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.predictions.batching import BatchSize, choose_batch_size, chunk_rows
    from secondlook.predictions.checks import (
        ClassNamesWarning,
        check_output_values,
        check_predict_from,
        check_top_k,
        resolve_positions,
    )
    from secondlook.predictions.collecting import PROGRESS_UNIT, collect
    from secondlook.predictions.division import Chunking
    from secondlook.predictions.flow import CollectJob, read_first_image, run_pipeline
    from secondlook.predictions.joined import ConcatenatedTable, concatenate
    from secondlook.predictions.leading import top_classes
    from secondlook.predictions.manifest import ensemble_key, entry_key
    from secondlook.predictions.part import Chunk, DamagedChunkWarning
    from secondlook.predictions.predictions import PredictFrom, Predictions
    from secondlook.predictions.store import StoreEntry
    from secondlook.predictions.table import block_rows

_MODULES = {
    "BatchSize": "secondlook.predictions.batching",
    "PredictFrom": "secondlook.predictions.predictions",
    "ClassNamesWarning": "secondlook.predictions.checks",
    "DamagedChunkWarning": "secondlook.predictions.part",
    "Chunking": "secondlook.predictions.division",
    "CollectJob": "secondlook.predictions.flow",
    "ConcatenatedTable": "secondlook.predictions.joined",
    "Chunk": "secondlook.predictions.part",
    "Predictions": "secondlook.predictions.predictions",
    "StoreEntry": "secondlook.predictions.store",
    "PROGRESS_UNIT": "secondlook.predictions.collecting",
    "check_predict_from": "secondlook.predictions.checks",
    "check_output_values": "secondlook.predictions.checks",
    "check_top_k": "secondlook.predictions.checks",
    "choose_batch_size": "secondlook.predictions.batching",
    "resolve_positions": "secondlook.predictions.checks",
    "collect": "secondlook.predictions.collecting",
    "ensemble_key": "secondlook.predictions.manifest",
    "read_first_image": "secondlook.predictions.flow",
    "concatenate": "secondlook.predictions.joined",
    "top_classes": "secondlook.predictions.leading",
    "block_rows": "secondlook.predictions.table",
    "chunk_rows": "secondlook.predictions.batching",
    "run_pipeline": "secondlook.predictions.flow",
    "entry_key": "secondlook.predictions.manifest",
}

__all__ = [
    "PROGRESS_UNIT",
    "BatchSize",
    "Chunk",
    "Chunking",
    "ClassNamesWarning",
    "CollectJob",
    "ConcatenatedTable",
    "DamagedChunkWarning",
    "PredictFrom",
    "Predictions",
    "StoreEntry",
    "block_rows",
    "check_output_values",
    "check_predict_from",
    "check_top_k",
    "choose_batch_size",
    "chunk_rows",
    "collect",
    "concatenate",
    "ensemble_key",
    "entry_key",
    "read_first_image",
    "resolve_positions",
    "run_pipeline",
    "top_classes",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
