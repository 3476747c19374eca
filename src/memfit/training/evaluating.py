"""`evaluate`: Keras's own, in batches of its own size."""

from typing import Any

import keras

from memfit.budgets.errors import InvalidInput
from memfit.training.batches import check_not_empty
from memfit.training.micro_batches import micro_batched_test_step
from memfit.training.steps import check_model, check_size, installed, is_custom


def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    *,
    micro_batch: int | None = None,
) -> Any:
    """Evaluates a model as `model.evaluate` does, so many samples at a time.

    Loss and metrics are those of the batches that the data comes in, whatever `micro_batch` is: a batch of a
    dataset or generator is cut inside the step.

    Args:
        model: A compiled model.
        micro_batch: Samples to compute at once; None for whole batches, as stock Keras does.

    Returns:
        What `model.evaluate` returns.
    """
    check_model(model)
    check_not_empty(x)
    test_step = None
    if micro_batch is not None:
        check_size("micro_batch", micro_batch)
        if is_custom(model, "test_step"):
            raise InvalidInput(
                "A batch cannot be evaluated in parts by a custom test_step: only that method knows how its "
                "losses add up",
                remedy="Leave micro_batch out, and give smaller batches",
            )
        test_step = micro_batched_test_step(model, micro_batch)
    with installed(model, test_step=test_step):
        return model.evaluate(
            x=x,
            y=y,
            batch_size=batch_size,
            verbose=verbose,
            sample_weight=sample_weight,
            steps=steps,
            callbacks=callbacks,
            return_dict=return_dict,
        )
