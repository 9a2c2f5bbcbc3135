"""Predictions: the outputs of a classifier for every view of every image, collected once, stored and read on demand."""

from secondlook.predictions.batching import BatchSize, Chunking, choose_batch_size, chunk_rows, group_views
from secondlook.predictions.chunk_store import BrokenChunkError, ChunkStore, LocalStorage, Storage
from secondlook.predictions.collection import collect, skip_by_default
from secondlook.predictions.execution import (
    DEFAULT_EXECUTION,
    ComputedChunk,
    Engine,
    Execution,
    LoadWorker,
    Worker,
)
from secondlook.predictions.inference import Inference
from secondlook.predictions.manifest import ClassifierRecord, entry_key
from secondlook.predictions.pipeline import DecodedChunk, decode_chunk, find_first_image, read_ahead, read_first_image
from secondlook.predictions.predictions import ArrayTable, PredictFrom, Predictions, top_classes
from secondlook.predictions.store import DamagedChunkWarning, StoreEntry
from secondlook.predictions.validation import (
    ClassNamesWarning,
    check_class_names_match,
    check_classes,
    check_output_values,
    check_prediction,
    resolve_positions,
)

__all__ = [
    "DEFAULT_EXECUTION",
    "ArrayTable",
    "BatchSize",
    "BrokenChunkError",
    "ChunkStore",
    "Chunking",
    "ClassNamesWarning",
    "ClassifierRecord",
    "ComputedChunk",
    "DamagedChunkWarning",
    "DecodedChunk",
    "Engine",
    "Execution",
    "Inference",
    "LoadWorker",
    "LocalStorage",
    "PredictFrom",
    "Predictions",
    "Storage",
    "StoreEntry",
    "Worker",
    "check_class_names_match",
    "check_classes",
    "check_output_values",
    "check_prediction",
    "choose_batch_size",
    "chunk_rows",
    "collect",
    "decode_chunk",
    "entry_key",
    "find_first_image",
    "group_views",
    "read_ahead",
    "read_first_image",
    "resolve_positions",
    "skip_by_default",
    "top_classes",
]
