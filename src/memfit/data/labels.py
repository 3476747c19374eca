"""Labels as numbers: classes, several classes per image, float targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memfit.errors import InvalidInput


@dataclass(frozen=True)
class Labels:
    """One label per image.

    Attributes:
        values: int32 class numbers, or float32 targets, or float32 rows of 0 and 1 (several classes per image).
        class_names: The classes in the order of their numbers; empty for targets and for numbers given as such.
    """

    values: Any
    class_names: tuple[str, ...] = ()


def encode(labels: Any, class_names: Sequence[str] | None = None) -> Labels:
    """Returns labels as numbers.

    Args:
        labels: Per image a class name, a class number, a float, a row of numbers, or a list of class names.
        class_names: The classes; None: those that occur, sorted.

    Raises:
        InvalidInput: If labels are missing, mixed, or not finite.
    """
    labels = list(labels) if not isinstance(labels, np.ndarray) else labels
    if len(labels) and isinstance(labels[0], list | tuple | set) and _all_text(labels[0], labels):
        return _several(labels, class_names)
    try:
        values = np.asarray(labels)
    except ValueError as error:  # rows of different lengths
        raise InvalidInput(f"Every image must have the same number of targets ({error})") from error
    if values.dtype.kind in "US" or (values.dtype == object and all(isinstance(v, str) for v in labels)):
        text = [str(value) for value in labels]
        names = tuple(sorted(set(text))) if class_names is None else tuple(class_names)
        number = {name: index for index, name in enumerate(names)}
        return Labels(np.array([number[name] for name in text], np.int32), names)
    if values.dtype.kind in "biu":
        return Labels(values.astype(np.int32) if values.ndim == 1 else values.astype(np.float32))
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise InvalidInput("Targets must be finite numbers", received=f"{labels[bad]} for image {bad}")
        return Labels(values.astype(np.float32))
    raise InvalidInput(
        "Labels are class names, numbers, rows of numbers, or lists of class names, the same for every image",
        received=f"labels of type {values.dtype}, such as {labels[0]!r}",
    )


def _all_text(first: Any, labels: Any) -> bool:
    return all(isinstance(name, str) for row in labels for name in row) and not isinstance(first, str)


def _several(labels: Any, class_names: Sequence[str] | None) -> Labels:
    names = tuple(sorted({name for row in labels for name in row}) if class_names is None else class_names)
    number = {name: index for index, name in enumerate(names)}
    values = np.zeros((len(labels), len(names)), np.float32)
    for row, classes in enumerate(labels):
        values[row, [number[name] for name in classes]] = 1
    return Labels(values, names)
