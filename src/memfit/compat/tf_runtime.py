"""TensorFlow's private parts of the runtime: its start, its options, its random numbers.

Checked with TensorFlow 2.19.0 and 2.21.0, and Keras 3.12.0 and 3.15.1.
"""

import sys
from typing import Any

from memfit.compat.keras_globals import shared_seed_generator

# What TensorFlow calls its CPU device's BFC allocator (the arena), whatever the device.
ARENA_ALLOCATOR = "bfc_cpu_allocator_for_gpu"

# How the attributes begin in which TensorFlow tracks an object for its checkpoints.
TRACKING_ATTRIBUTES = ("_self_", "_unconditional_")


def is_initialised() -> bool:
    """Says whether TensorFlow has started its devices in this process, without starting them.

    The public calls that list logical devices or ask for memory figures initialise the devices themselves.
    """
    return "tensorflow" in sys.modules and bool(_eager().context()._initialized)


def optimise_once() -> None:
    """Lets TensorFlow go over functions that are called from now on once instead of twice, to save a second.

    The second time it finds next to nothing: 19 of the 10,355 ops of ResNet50's training step.
    """
    import tensorflow as tf

    own = _eager().context()
    config = tf.compat.v1.ConfigProto()
    if own._config is not None:
        config.CopyFrom(own._config)
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = options.ONE
    own._config = config
    own.function_call_options = None


def refuses_to_run_one_by_one(error: Exception) -> bool:
    """Says whether the executor that runs one op after the other refused a function, for a loop that is in it."""
    return "Single-threaded executor" in str(error)


def place_in_time(variable: Any) -> int:
    """Returns a number that is larger the later a variable of TensorFlow was made."""
    return int(variable._unique_id.rpartition("_")[2])


def compile_options(function: Any) -> dict[str, Any]:
    """Returns the options that a `tf.function` was made with and that its steps depend on."""
    return {"jit_compile": function._jit_compile, "reduce_retracing": function._reduce_retracing}


def contents_of(table: Any) -> tuple[Any, Any, str, str, Any]:
    """Returns a table's keys and values, their types, and what stands for a key that is not there."""
    import tensorflow as tf

    key_type, value_type = table.key_dtype, table.value_dtype
    try:
        keys, values = (part.numpy() for part in table.export())
    except (tf.errors.AbortedError, tf.errors.FailedPreconditionError):  # no vocabulary yet
        keys, values = [], []
    return keys, values, key_type.name, value_type.name, tf.get_static_value(table._default_value)


def random_states() -> dict[str, Any]:
    """The states of Keras's and TensorFlow's global random numbers; None for those not drawn from yet."""
    keras_own = shared_seed_generator()
    generator = _random_ops().global_generator
    rng = _eager_seeds()
    return {
        "keras": None if keras_own is None else keras_own.state.numpy(),
        "generator": None if generator is None else generator.state.numpy(),
        "tensorflow": None if rng is None else rng.getstate(),
    }


def put_back_random_states(states: dict[str, Any]) -> None:
    """Lets Keras's and TensorFlow's global random numbers go on from what `random_states` returned."""
    from keras.src.random.seed_generator import global_seed_generator

    if states["keras"] is not None:
        global_seed_generator().state.assign(states["keras"])
    if states["generator"] is not None:
        _random_ops().get_global_generator().state.assign(states["generator"])
    rng = _eager_seeds()
    if states["tensorflow"] is not None and rng is not None:
        rng.setstate(states["tensorflow"])


def global_seed() -> int | None:
    """The seed given to `tf.random.set_seed` or `keras.utils.set_random_seed`; None where none was given."""
    seed: int | None = _eager().global_seed()
    return seed


def _eager() -> Any:
    """The module with TensorFlow's one object for devices, options and seeds."""
    from tensorflow.python.eager import context

    return context


def _eager_seeds() -> Any:
    """What draws the seeds of ops that have none, once a global seed was given; else None."""
    return getattr(_eager().context(), "_rng", None)


def _random_ops() -> Any:
    from tensorflow.python.ops import stateful_random_ops

    return stateful_random_ops
