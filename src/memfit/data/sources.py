"""Where images come from: a folder per class, a list of paths, a CSV file or a DataFrame."""

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memfit.data.labels import Labels, encode
from memfit.errors import InvalidInput

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
# What tables of images call their column of files; the first column where none of these is there.
_PATH_COLUMNS = ("path", "paths", "file", "files", "filename", "file_name", "image", "image_path", "filepath")


@dataclass(frozen=True)
class Files:
    """Image files with their labels.

    Attributes:
        paths: The files, in a fixed order.
        labels: Their labels, or None.
    """

    paths: tuple[str, ...]
    labels: Labels | None


def find_files(source: Any, labels: Any = None) -> Files:
    """Returns the images that `source` names.

    Args:
        source: A folder (each sub-folder is a class), a CSV file, a DataFrame, or paths.
        labels: Labels for paths; see `memfit.images`.

    Raises:
        InvalidInput: If there are no images, or not one label per image.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            return _from_folder(path, labels)
        if path.suffix.lower() == ".csv" and path.is_file():
            with path.open(newline="") as stream:
                rows = list(csv.reader(stream))
            return _from_table(rows[0] if rows else [], rows[1:], path.parent, labels)
        raise InvalidInput(
            "Images come from a folder, a CSV file, a DataFrame or a list of paths",
            received=str(source),
            remedy="Check the path: there is no such folder or .csv file",
        )
    if hasattr(source, "columns") and hasattr(source, "itertuples"):
        head = [str(column) for column in source.columns]
        return _from_table(head, [list(row) for row in source.itertuples(index=False)], Path(), labels)
    return _check_files([os.fspath(path) for path in source], labels)


def _from_folder(folder: Path, labels: Any) -> Files:
    """One class per sub-folder, as deep as it goes; a folder without sub-folders has no classes."""
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not classes or labels is not None:
        return _check_files(_images_below(folder), labels, folder)
    paths: list[str] = []
    names: list[str] = []
    for name in classes:
        images = _images_below(folder / name)
        paths += images
        names += [name] * len(images)
    return _check_files(paths, names, folder, class_names=classes)


def _images_below(folder: Path) -> list[str]:
    images = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        # A path join per file is most of the time of a walk over a million files; a plain text sum is not.
        images += [f"{parent}{os.sep}{name}" for name in sorted(names) if name.lower().endswith(EXTENSIONS)]
    return images


def _from_table(head: Sequence[str], rows: list[list[Any]], base: Path, labels: Any) -> Files:
    """The column of paths and, unless labels are given, all others as labels."""
    if not head or not rows:
        raise InvalidInput("A table of images has a line of column names and at least one row")
    column = next((i for i, name in enumerate(head) if name.lower() in _PATH_COLUMNS), 0)
    paths = [str(base / str(row[column])) for row in rows]
    others = [i for i in range(len(head)) if i != column]
    if labels is None and others:
        values = [[_number(row[i]) for i in others] for row in rows]
        labels = [row[0] for row in values] if len(others) == 1 else values
        if len(others) == 1 and any(isinstance(value, str) and "|" in value for value in labels):
            labels = [str(value).split("|") if value != "" else [] for value in labels]
    return _check_files(paths, labels)


def _number(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _check_files(
    paths: Iterable[str], labels: Any, source: object = None, class_names: Sequence[str] | None = None
) -> Files:
    images = tuple(paths)
    if not images:
        raise InvalidInput(
            "There must be at least one image",
            received=None if source is None else str(source),
            remedy=f"Images end in {', '.join(EXTENSIONS)}",
        )
    encoded = None if labels is None else encode(labels, class_names)
    if encoded is not None and len(encoded.values) != len(images):
        raise InvalidInput(
            "There must be one label for each image",
            received=f"{len(images)} images, {len(encoded.values)} labels",
        )
    return Files(images, encoded)


def split(count: int, fraction: float, seed: int) -> tuple[Any, Any]:
    """Returns the numbers of the images for training and for validation, drawn at random by the seed."""
    if not 0 < fraction < 1:
        raise InvalidInput("validation_split lies between 0 and 1", received=fraction)
    held_out = round(count * fraction)
    if not 0 < held_out < count:
        raise InvalidInput(
            "Both parts of a validation split need at least one image",
            received=f"validation_split={fraction} of {count} images",
        )
    order = np.random.default_rng(abs(seed)).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
