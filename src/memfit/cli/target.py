"""What several commands are asked about: a training script, or a saved model."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memfit.errors import InvalidInput, StepFailed
from memfit.sizes import check_memory
from memfit.survival.scripts import check_script


def add_target(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments that name a training."""
    parser.add_argument(
        "target", metavar="FILE", help="a training script (.py) or a saved model (.keras, .h5)"
    )
    parser.add_argument("arguments", nargs="*", metavar="ARG", help="arguments of the script, after --")
    parser.add_argument(
        "--batch", type=int, help="the batch size (default: that of the script's fit(), or 32)"
    )
    parser.add_argument("--optimizer", help="compile a saved model with this optimizer")


def check_target(args: argparse.Namespace) -> None:
    """Refuses what needs no model to be refused: TensorFlow's import takes seconds.

    Raises:
        InvalidInput: If there is no such file or device, or the batch or the memory is none.
    """
    from memfit.budgets.gpu_table import gpu

    if args.batch is not None and args.batch < 1:
        raise InvalidInput("A batch has at least one sample", received=args.batch, remedy="Write --batch 32")
    check_memory(args.memory)
    if args.device is not None:
        gpu(args.device)
    path = Path(args.target)
    if path.suffix == ".py" or path.is_dir():
        check_script(path)
    elif not path.is_file():
        raise InvalidInput(
            "There is no such file", received=str(path), remedy="Give a script or a saved model"
        )


class Target(NamedTuple):
    """A training to ask about.

    Attributes:
        model: The model, compiled.
        data: An example of its data, or None.
        batch_size: Samples in a step; None where batches differ.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
    """

    model: Any
    data: Any
    batch_size: int | None
    validation_batch_size: int | None = None


def target(args: argparse.Namespace) -> Target:
    """Returns what the file trains: a script's first `fit`, or a saved model.

    Raises:
        InvalidInput: If the file is neither, or the script never trains.
    """
    path = Path(args.target)
    if path.suffix == ".py":
        from memfit.data.shapes import Shapes
        from memfit.survival.first_fit import first_fit

        call = first_fit(path, args.arguments, quiet=args.json)
        # Where shapes vary, each of the data's batches has its own number of samples.
        data = call.data
        batch_size = args.batch or (None if isinstance(data, Shapes) else call.batch_size)
        return Target(call.model, data, batch_size, call.validation_batch_size(args.batch or call.batch_size))
    return Target(_loaded(path, args.optimizer), None, args.batch or 32)


@contextlib.contextmanager
def failures_of(file: str) -> Iterator[None]:
    """Names the file whose training step failed while it was recorded."""
    try:
        yield
    except StepFailed as error:
        raise InvalidInput(
            str(error),
            received=file,
            remedy="Check that it trains without memfit; memfit.estimate in the script gives the whole traceback",
        ) from error


def _loaded(path: Path, optimizer: str | None) -> Any:
    import keras

    try:
        model = keras.saving.load_model(path)
    except Exception as error:  # Keras raises whatever reading the file raises
        raise InvalidInput(
            f"That file is not a Keras model ({error})".replace("\n", " "),
            received=str(path),
            remedy="Save one with model.save('model.keras'), or give a training script that ends in .py",
        ) from error
    if optimizer is not None:
        try:
            # A loss that is not known takes next to no memory: the mean squared error stands in for it.
            model.compile(optimizer, model.loss if model.compiled and model.loss else "mse")
        except ValueError as error:
            raise InvalidInput(
                "That is not a Keras optimizer", received=optimizer, remedy="adam, sgd, ..."
            ) from error
    elif not model.compiled:
        raise InvalidInput(
            "The saved model is not compiled, so its optimizer is not known",
            received=str(path),
            remedy="Name one with --optimizer adam",
        )
    return model
