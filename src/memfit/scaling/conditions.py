"""What a training on several ranks is refused for, before its first step, and how far it is from one device's.

Ranks that differ would train different things without an error, or wait for each other for ever.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from memfit.compat import keras_data, keras_training
from memfit.compat.versions import read_versions
from memfit.errors import CannotTell, InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.job import Job
from memfit.scaling.communicator import Ranks
from memfit.scaling.survivors import meeting_others
from memfit.scaling.synchronized import normalising_layers
from memfit.sizes import Size
from memfit.steps.installing import is_custom, why_not_micro_batches
from memfit.steps.micro_batches.trial import SAMPLES
from memfit.training.batches import batch_size_of, count_data
from memfit.training.feeding import feed_of, fingerprint_data
from memfit.training.running import current_runner

_COUNTS = (
    "batch_size",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
)


def check_model(model: keras.Model) -> None:
    """Refuses a model whose batches cannot be shared.

    Raises:
        InvalidInput: Says why.
    """
    if not model.compiled:
        return  # Keras says it best
    reason = why_not_micro_batches(model)
    if reason is None and keras_training.has_strategy(model):
        reason = "a distribution strategy runs its steps"
    if reason is None and model.run_eagerly:
        reason = "it is compiled with run_eagerly=True, and only a graph knows a share's random numbers"
    if reason is None and is_custom(model, "test_step"):
        reason = "its test_step is custom, and only that method knows how its losses add up"
    if reason is not None:
        raise InvalidInput(
            "Each rank computes a part of every batch, and this model cannot be trained in parts",
            received=reason,
            remedy="Train it in one process, without --ranks, or change that",
        )


def check_data(arguments: Mapping[str, Any], count: int) -> None:
    """Refuses data of which ranks cannot take shares.

    Raises:
        InvalidInput: If batches have fewer samples than there are ranks, or come in another order on each rank.
    """
    x = arguments["x"]
    try:
        size = batch_size_of(x, arguments["batch_size"])
    except CannotTell:
        size = count
    if size < count:
        raise InvalidInput(
            "The batch size is that of all ranks together: at least one sample for each",
            received=f"batches of {size} on {count} ranks",
            remedy="Use a larger batch_size or fewer ranks",
        )
    order = feed_of(arguments)
    # `memfit run` gives arrays an order that all processes of the run have.
    ordered = current_runner().restarts and not keras_data.batches_itself(x)
    unordered = "any order" in order.why_not
    if ("seed" in order.why_not and not ordered) or unordered:
        seed = "Call keras.utils.set_random_seed(...) first, or give shuffle(..., seed=...)"
        plain = "Leave deterministic=False and tf.data service out, or train in one process, without --ranks"
        raise InvalidInput(
            "All ranks must read the data in the same order, which needs a seed",
            received=order.why_not,
            remedy=plain if unordered else seed,
        )


def layers_to_synchronize(model: keras.Model, allowed: Fidelity) -> list[Any]:
    """The layers whose statistics are those of all ranks: those that ask for it, or all of them for `exact`."""
    exact = allowed == Fidelity.EXACT
    return [layer for layer in normalising_layers(model) if exact or layer.synchronized]


def explain_statistics(model: keras.Model, synchronized: list[Any], count: int) -> str | None:
    """Says what batch statistics are over on several ranks; None where there are none."""
    layers = normalising_layers(model)
    alone = [layer for layer in layers if layer not in synchronized]
    if alone:
        return (
            f"near, on {count} ranks: {len(alone)} layer(s), such as {alone[0].name}, use the batch statistics of "
            'each rank\'s own samples; allow="exact", or BatchNormalization(synchronized=True), uses those of all.'
        )
    if layers:
        return f"{len(layers)} layer(s) use the batch statistics of all {count} ranks (exact)."
    return None


def explain_mixed_samples(model: keras.Model, data: Any, allowed: Fidelity, count: int) -> Iterator[str]:
    """Says why shares of a batch give other results than all of it; tried on a few samples, as for micro-batches.

    Raises:
        InvalidInput: If they do, and only exact results are allowed.
    """
    job = Job(model, SAMPLES, Size(0), allowed, data)
    reason = job.outputs_differ or job.losses_differ
    if reason is None:
        return
    if allowed == Fidelity.EXACT:
        raise InvalidInput(
            "Ranks compute parts of a batch, which is exact only if no sample depends on the others",
            received=reason,
            remedy='Train it in one process, or allow "near"',
        )
    yield f"near, on {count} ranks: {reason}."


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
