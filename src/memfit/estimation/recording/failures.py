"""Telling a step that fails on synthetic data from a recorder that fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from memfit.errors import MemfitError, StepFailed, in_one_line


@contextmanager
def step_failures() -> Iterator[None]:
    """Raises whatever the model's own code raises as a `StepFailed`; also a decorator."""
    try:
        yield
    except MemfitError:
        raise
    except Exception as error:
        raise _failed(error) from error


@contextmanager
def op_failures() -> Iterator[None]:
    """Raises errors of TensorFlow's ops, which only steps run here, as a `StepFailed`; also a decorator."""
    try:
        yield
    except Exception as error:
        import tensorflow as tf

        if isinstance(error, tf.errors.OpError):
            raise _failed(error) from error
        raise


def _failed(error: Exception) -> StepFailed:
    return StepFailed(f"The training step failed on synthetic data: {in_one_line(error)}")
