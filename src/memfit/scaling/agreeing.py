"""What all ranks have to have in common, looked at before the first step of a training.

Ranks that differ would train different things without an error, or wait for each other for ever.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from memfit.compat.versions import read_versions
from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.scaling.communicator import Ranks
from memfit.scaling.survivors import meeting_others
from memfit.training.feeding import fingerprint_data

_COUNTS = (
    "batch_size",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
)


def agree_on_call(ranks: Ranks, model: keras.Model, arguments: Mapping[str, Any], allowed: Fidelity) -> None:
    """Checks that all ranks are about to train the same model on the same data in the same way.

    Args:
        arguments: Of `fit`, by name.
        allowed: How far the result may be from that of one process.

    Raises:
        InvalidInput: On every rank, names what differs and on which rank.
    """
    x, y = arguments["x"], arguments["y"]
    facts = {
        "script": _hash_script(),
        **{f"version of {name}": version for name, version in read_versions().items()},
        "model": fingerprint(model),
        "optimizer": _describe(model.optimizer) if model.compiled else "",
        "loss": str(getattr(model, "loss", None)) if isinstance(getattr(model, "loss", None), str) else "",
        "number of samples or batches": count_data(x),
        "data": fingerprint_data(x, y),
        "number of validation samples or batches": count_data(arguments["validation_data"]),
        "shuffle": str(arguments["shuffle"]),
        "allow": str(allowed),
        **{name: arguments[name] for name in _COUNTS},
    }
    with meeting_others():
        everyone = ranks.gather(facts)
    for name in facts:
        for rank, other in enumerate(everyone):
            if other.get(name) != everyone[0].get(name):
                raise InvalidInput(
                    f"All ranks must have the same {name}",
                    received=f"{everyone[0].get(name)!r} on rank 0, {other.get(name)!r} on rank {rank}",
                    remedy="Start the same script with the same versions, arguments and data on every rank",
                )


def count_data(data: Any) -> int | None:
    """Returns how many samples arrays have, or how many batches a dataset; None where only its end will tell."""
    if data is None:
        return None
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches
    if hasattr(data, "cardinality"):
        batches = int(data.cardinality())
        return batches if batches >= 0 else None
    first = next(iter(keras.tree.flatten(data)), None)
    shape = getattr(first, "shape", None)
    return int(shape[0]) if shape else None


def _hash_script() -> str:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def _describe(optimizer: Any) -> str:
    """The optimizer's settings; a schedule or a callable is named by its class."""
    settings = optimizer.get_config()
    plain = {name: value for name, value in settings.items() if isinstance(value, int | float | str | bool)}
    return f"{type(optimizer).__name__} {sorted(plain.items())}"
