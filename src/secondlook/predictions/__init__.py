"""Predictions: the outputs of a classifier for every view of every image, collected once, stored and read on demand."""

from secondlook.predictions.batching import (
    BatchSize,
    Chunking,
    block_rows,
    choose_batch_size,
    chunk_rows,
    group_views,
)
from secondlook.predictions.chunk_store import (
    CHUNK_NAME,
    BrokenChunkError,
    ChunkStore,
    LocalStorage,
    Storage,
    encode_chunk,
)
from secondlook.predictions.chunks import (
    Chunk,
    ChunkKey,
    DamagedChunkWarning,
    SaveTimer,
    read_partial_chunk,
    write_chunk,
)
from secondlook.predictions.collection import PROGRESS_UNIT, collect, skip_by_default
from secondlook.predictions.decoding import DecodedChunk, decode_chunk, find_first_image, list_skipped, read_first_image
from secondlook.predictions.engine import ComputedChunk, Engine, LoadWorker, Worker
from secondlook.predictions.execution import DEFAULT_EXECUTION, Execution
from secondlook.predictions.inference import Inference, make_inference
from secondlook.predictions.manifest import ClassifierRecord, Origin, SkippedImage, ensemble_key, entry_key
from secondlook.predictions.pipeline import (
    CollectJob,
    Sink,
    read_chunks,
    run_pipeline,
)
from secondlook.predictions.predictions import ArrayTable, PredictFrom, Predictions, concatenate, top_classes
from secondlook.predictions.read_ahead import read_ahead
from secondlook.predictions.store import StoreEntry
from secondlook.predictions.validation import (
    ClassNamesWarning,
    check_class_names_match,
    check_classes,
    check_output_values,
    check_predict_from,
    check_top_k,
    resolve_positions,
)

__all__ = [
    "CHUNK_NAME",
    "DEFAULT_EXECUTION",
    "PROGRESS_UNIT",
    "ArrayTable",
    "BatchSize",
    "BrokenChunkError",
    "Chunk",
    "ChunkKey",
    "ChunkStore",
    "Chunking",
    "ClassNamesWarning",
    "ClassifierRecord",
    "CollectJob",
    "ComputedChunk",
    "DamagedChunkWarning",
    "DecodedChunk",
    "Engine",
    "Execution",
    "Inference",
    "LoadWorker",
    "LocalStorage",
    "Origin",
    "PredictFrom",
    "Predictions",
    "SaveTimer",
    "Sink",
    "SkippedImage",
    "Storage",
    "StoreEntry",
    "Worker",
    "block_rows",
    "check_class_names_match",
    "check_classes",
    "check_output_values",
    "check_predict_from",
    "check_top_k",
    "choose_batch_size",
    "chunk_rows",
    "collect",
    "concatenate",
    "decode_chunk",
    "encode_chunk",
    "ensemble_key",
    "entry_key",
    "find_first_image",
    "group_views",
    "list_skipped",
    "make_inference",
    "read_ahead",
    "read_chunks",
    "read_first_image",
    "read_partial_chunk",
    "resolve_positions",
    "run_pipeline",
    "skip_by_default",
    "top_classes",
    "write_chunk",
]
