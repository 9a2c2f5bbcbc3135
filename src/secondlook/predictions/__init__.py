"""Predictions: the outputs of a classifier for all views of all images, collected once and read on demand."""

from secondlook.predictions.batching import BatchSize, Chunking, choose_batch_size, chunk_rows
from secondlook.predictions.chunk_store import BrokenChunkError, ChunkStore, LocalStorage
from secondlook.predictions.collection import collect, skip_by_default
from secondlook.predictions.decoding import DecodedChunk, find_first_image, read_ahead, read_first_image
from secondlook.predictions.execution import (
    DEFAULT_EXECUTION,
    ComputedChunk,
    Engine,
    Execution,
    LoadWorker,
    Worker,
)
from secondlook.predictions.inference import Inference
from secondlook.predictions.predictions import PredictFrom, Predictions
from secondlook.predictions.store import ClassifierRecord, DamagedChunkWarning, entry_key
from secondlook.predictions.validation import (
    ClassNamesWarning,
    check_class_names_match,
    check_classes,
    check_prediction,
)

__all__ = [
    "DEFAULT_EXECUTION",
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
    "Worker",
    "check_class_names_match",
    "check_classes",
    "check_prediction",
    "choose_batch_size",
    "chunk_rows",
    "collect",
    "entry_key",
    "find_first_image",
    "read_ahead",
    "read_first_image",
    "skip_by_default",
]
