"""Where images come from: a folder per class, a list of paths, a CSV file or a DataFrame."""

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from memfit.errors import InvalidInput

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
# What tables of images call their column of files; the first column where none of these is there.
_PATH_COLUMNS = ("path", "paths", "file", "files", "filename", "file_name", "image", "image_path", "filepath")


@dataclass(frozen=True)
class Files:
    """Image files with their labels.

    Attributes:
        paths: The files, in a fixed order.
        labels: One for each: int32 class numbers, float32 targets, or float32 rows of 0 and 1 (several classes per
            image); or None.
        class_names: The classes in the order of their numbers; empty for targets and for numbers given as such.
    """

    paths: tuple[str, ...]
    labels: Any
    class_names: tuple[str, ...] = ()


def find_files(source: Any, labels: Any = None) -> Files:
    """Returns the images that `source` names; see `memfit.images`.

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
        raise InvalidInput("A table of images needs a line of column names and at least one row")
    column = next((i for i, name in enumerate(head) if name.lower() in _PATH_COLUMNS), 0)
    paths = [str(base / str(row[column])) for row in rows]
    others = [i for i in range(len(head)) if i != column]
    if labels is None and others:
        labels = [[_number(row[i]) for i in others] for row in rows]
        if len(others) == 1:
            labels = [row[0] for row in labels]
            if any(isinstance(value, str) and "|" in value for value in labels):
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
    paths: list[str], labels: Any, source: object = None, class_names: Sequence[str] | None = None
) -> Files:
    if not paths:
        raise InvalidInput(
            "There must be at least one image",
            received=None if source is None else str(source),
            remedy=f"Images end in {', '.join(EXTENSIONS)}",
        )
    if labels is None:
        return Files(tuple(paths), None)
    values, class_names = _encode(labels, class_names)
    if len(values) != len(paths):
        raise InvalidInput(
            "There must be one label for each image", received=f"{len(paths)} images, {len(values)} labels"
        )
    return Files(tuple(paths), values, tuple(class_names))


def _encode(labels: Any, class_names: Sequence[str] | None) -> tuple[Any, Sequence[str]]:
    """Labels as numbers, and the names of the classes (those that occur, sorted, unless they are given)."""
    labels = labels if isinstance(labels, np.ndarray) else list(labels)
    if len(labels) and isinstance(labels[0], list | tuple | set) and _are_texts(chain(*labels)):
        names = sorted(set(chain(*labels))) if class_names is None else class_names
        rows = [[name in row for name in names] for row in map(set, labels)]
        return np.array(rows, np.float32), names
    try:
        values = np.asarray(labels)
    except ValueError as error:  # rows of different lengths
        raise InvalidInput(f"Every image must have the same number of targets ({error})") from error
    if values.dtype.kind in "US" or (values.dtype == object and _are_texts(labels)):
        texts = [str(value) for value in labels]
        names = sorted(set(texts)) if class_names is None else class_names
        number = {name: index for index, name in enumerate(names)}
        return np.array([number[text] for text in texts], np.int32), names
    if values.dtype.kind in "biu":
        return values.astype(np.int32 if values.ndim == 1 else np.float32), ()
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise InvalidInput("Targets must be finite numbers", received=f"{labels[bad]} for image {bad}")
        return values.astype(np.float32), ()
    raise InvalidInput(
        "Labels are class names, numbers, rows of numbers, or lists of class names, the same for every image",
        received=f"labels of type {values.dtype}, such as {labels[0]!r}",
    )


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def split(count: int, fraction: float, seed: int) -> tuple[Any, Any]:
    """Returns the numbers of the images for training and for validation, drawn at random by the seed."""
    if not 0 < fraction < 1:
        raise InvalidInput("validation_split must be between 0 and 1", received=fraction)
    held_out = round(count * fraction)
    if not 0 < held_out < count:
        raise InvalidInput(
            "Both parts of a validation split need at least one image",
            received=f"validation_split={fraction} of {count} images",
        )
    order = np.random.default_rng(abs(seed)).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
