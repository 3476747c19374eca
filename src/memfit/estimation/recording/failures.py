"""Telling a step that fails on synthetic data from a recorder that fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from sys import stdlib_module_names
from traceback import walk_tb

from memfit.errors import MemfitError, StepFailed, in_one_line

# What calls the user's code, and is called by it.
_LIBRARIES = frozenset({"keras", "tensorflow", "numpy", "optree", "cloudpickle"})


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
    """Raises errors of TensorFlow's ops, which only steps run here, and of the user's code; also a decorator."""
    try:
        yield
    except MemfitError:
        raise
    except Exception as error:
        import tensorflow as tf

        if isinstance(error, tf.errors.OpError) or _is_of_users_code(error):
            raise _failed(error) from error
        raise


def _is_of_users_code(error: Exception) -> bool:
    """Whether the innermost function of an error that is not a library's is the user's, not one of memfit's."""
    packages = [
        str(frame.f_globals.get("__name__", "")).partition(".")[0]
        for frame, _ in walk_tb(error.__traceback__)
    ]
    own = [
        package for package in packages if package not in _LIBRARIES and package not in stdlib_module_names
    ]
    return bool(own) and own[-1] != __name__.partition(".")[0]


def _failed(error: Exception) -> StepFailed:
    return StepFailed(f"The training step failed on synthetic data: {in_one_line(error)}")
