"""Opening a store without a classifier: one run, or the runs of an ensemble's members."""

from collections.abc import Sequence
from pathlib import Path

from secondlook.errors import PredictionsError
from secondlook.predictions.asked_views import positions_of
from secondlook.predictions.images_file import read_images
from secondlook.predictions.manifest import ENSEMBLE_FILE, RUN_FILE, EnsembleManifest, Manifest, read_manifest
from secondlook.predictions.predictions import Predictions
from secondlook.predictions.store import StoreEntry
from secondlook.predictions.stored_table import StoredTable
from secondlook.views import ViewSet


def open_predictions(store: Path, run: str | None, views: ViewSet | None) -> Predictions:
    """Open the run of a store (or the run whose folder `store` is) for all its views or those asked for."""
    folder = _chosen_folder(store, run)
    if (folder / ENSEMBLE_FILE).is_file():
        names = read_manifest(folder / ENSEMBLE_FILE, EnsembleManifest).members
        members = [open_entry(StoreEntry.open(folder.parent / name), views) for name in names]
        return Predictions(members=members, views=members[0].views)
    return open_entry(StoreEntry.open(folder), views)


def open_entry(run: StoreEntry, views: ViewSet | None = None) -> Predictions:
    """Open one run for all its views or those asked for."""
    asked = ViewSet(run.manifest.views) if views is None else views
    positions_of(asked, run.manifest.views)
    missing = run.missing_parts(asked.texts)
    if missing or run.manifest.classes is None:
        raise PredictionsError(_unfinished(run, asked, missing))
    ids, labels = read_images(run.folder)
    indices = run.read_indices()
    opened = Predictions.from_table(
        StoredTable(run, asked.texts, run.manifest.classes),
        asked,
        labels=None if labels is None else labels[indices],
        ids=[ids[index] for index in indices],
        class_names=run.manifest.data.class_names,
    )
    opened.skipped = tuple((image.id, image.reason) for image in run.manifest.skipped)
    return opened


def _unfinished(run: StoreEntry, asked: ViewSet, missing: Sequence[tuple[str, int]]) -> str:
    parts = len(asked) * len(run.division.numbers)
    absent = len({view for view, _ in missing})
    return (
        f"the run {str(run.folder)!r} is not finished: {len(missing)} of {parts} parts are missing, in {absent} of "
        f"{len(asked)} views; collect into the same store again, or open other views with views=."
    )


def _chosen_folder(store: Path, run: str | None) -> Path:
    if _is_run(store):
        return store
    if not store.is_dir():
        raise PredictionsError(f"there is no store {str(store)!r}; expected a folder that collect(store=...) filled.")
    found = sorted(folder for folder in store.iterdir() if folder.is_dir() and _is_run(folder))
    chosen = [folder for folder in found if folder.name.startswith(run or "")]
    if run is None:
        chosen = _without_members(chosen)
    if len(chosen) != 1:
        raise PredictionsError(_which(store, run, chosen or found))
    return chosen[0]


def _is_run(folder: Path) -> bool:
    return (folder / RUN_FILE).is_file() or (folder / ENSEMBLE_FILE).is_file()


def _without_members(folders: Sequence[Path]) -> list[Path]:
    """Leave out the runs that are members of an ensemble in the same store: it is the ensemble that was asked for."""
    files = [folder / ENSEMBLE_FILE for folder in folders if (folder / ENSEMBLE_FILE).is_file()]
    members = {name for file in files for name in read_manifest(file, EnsembleManifest).members}
    return [folder for folder in folders if folder.name not in members]


def _which(store: Path, run: str | None, folders: Sequence[Path]) -> str:
    if not folders:
        return f"the store {str(store)!r} holds no predictions; expected a folder that collect(store=...) filled."
    problem = f"holds {len(folders)} runs" if run is None else f"has no single run whose name begins with {run!r}"
    listed = "; ".join(_described(folder) for folder in folders)
    return f"the store {str(store)!r} {problem}; choose one with run=: {listed}."


def _described(folder: Path) -> str:
    if (folder / ENSEMBLE_FILE).is_file():
        return f"{folder.name} (ensemble of {len(read_manifest(folder / ENSEMBLE_FILE, EnsembleManifest).members)})"
    manifest = read_manifest(folder / RUN_FILE, Manifest)
    return (
        f"{folder.name} ({manifest.classifier.name} on {manifest.data.spec}: "
        f"{manifest.data.images} images, {len(manifest.views)} views)"
    )
