"""`slim`: another network for the same memory, compared honestly."""

from typing import Any

from memfit.budgets.gpu_table import find_gpu
from memfit.compat.keras_layers import functional_of
from memfit.errors import InvalidInput
from memfit.estimation.estimate import check_batch
from memfit.estimation.recording.specs import fixed_batch
from memfit.planning.planning import read_memory
from memfit.slimming.closeness import take_sample
from memfit.slimming.comparing import Job, compare
from memfit.slimming.rebuilding import CannotSlim
from memfit.slimming.variants import find_variant, list_variants

_BATCH = 32


def slim(
    model: Any,
    variant: str | None = None,
    amount: float | None = None,
    *,
    batch_size: int | None = None,
    memory: int | str | None = None,
    data: Any = None,
    device: str | None = None,
) -> Any:
    """Compares smaller networks for the same job, or makes one of them.

    Without a variant, every one is built from the model's own weights, counted, compared with the model on a sample
    of the data, and its training step is recorded as `memfit.estimate` does, as far as a minute allows; the others
    are predicted from the shapes of their layers and marked with "~". The model itself is never changed.

    Args:
        model: A compiled Keras model.
        variant: What to make: "separable", "narrow", "low-rank", "smaller input", "mixed precision", "frozen",
            "LoRA", "quantised", or several as "narrow + mixed precision"; None for the table of all.
        amount: How far that variant goes; each has its own meaning and default.
        batch_size: Samples in a training step; 32 unless told.
        memory: What a training may take, such as "4GiB": the largest batch of each variant in it is shown, and
            variants are combined where none fits alone. The device's, where one is named.
        data: A sample of the training data, (x, y) or a dataset, to measure how close the outputs are.
        device: A GPU that the figures are for, such as "RTX 3060", as in `memfit.estimate`.

    Returns:
        The table (`Slimmed`); with a variant, the new model, compiled as the original.

    Raises:
        InvalidInput: If an argument is invalid, there is nothing to slim, or the variant cannot be built.

    Example:
        ```python
        table = memfit.slim(model, batch_size=64, memory="4GiB", data=(x, y))
        small = table["separable"].model()
        ```
    """
    if not getattr(model, "compiled", False):
        raise InvalidInput(
            "A model must be compiled to be slimmed: the optimizer and the loss take memory too",
            received=type(model).__name__,
            remedy="Call model.compile(...) first",
        )
    if variant is not None:
        return _make(model, variant, amount, device)
    if amount is not None:
        raise InvalidInput(
            "An amount needs a variant",
            received=amount,
            remedy='Name it: memfit.slim(model, "narrow", 0.75)',
        )
    size = batch_size if batch_size is not None else fixed_batch(model) or _BATCH
    check_batch(fixed_batch(model), size)
    card = find_gpu(device)
    room = None if memory is None else read_memory(memory)
    if memory is None and device is not None and card is not None:
        room = card.usable
    sample = take_sample(model, data)
    # Where the model itself tells its shapes, a variant with smaller images does so as well.
    told = None if functional_of(model) is not None and _tells_shapes(model) else data
    job = Job(model, size, room, told, sample, card)
    return compare(job, [(each, each.default) for each in list_variants(device)])


def _make(model: Any, name: str, amount: float | None, device: str | None) -> Any:
    variant = find_variant(name, device)
    amount = variant.read_amount(amount)
    try:
        if (reason := variant.why_not(model)) is not None:
            raise CannotSlim(reason)
        return variant.make(model, amount).model
    except CannotSlim as error:
        raise InvalidInput(
            f"{variant.name!r} cannot be built from this model: {error}", received=f"model {model.name!r}"
        ) from error


def _tells_shapes(model: Any) -> bool:
    return all(side is not None for tensor in model.inputs for side in tensor.shape[1:])
