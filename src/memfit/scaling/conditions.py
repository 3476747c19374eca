"""What a training on several ranks is refused for, before its first step, and how far it is from one device's."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from memfit.compat import keras_data, keras_training
from memfit.errors import CannotTell, InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.scaling.synchronized import normalising_layers
from memfit.sizes import Size
from memfit.steps.installing import is_custom, why_not_micro_batches
from memfit.steps.micro_batches.additivity import TRIED_SAMPLES
from memfit.training.batches import batch_size_of
from memfit.training.feeding import feed
from memfit.training.running import current_runner


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
    names = ("batch_size", "shuffle", "class_weight", "validation_split")
    order = feed(x, arguments["y"], arguments["sample_weight"], **{name: arguments[name] for name in names})
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
    job = Job(model, TRIED_SAMPLES, Size(0), allowed, data)
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
