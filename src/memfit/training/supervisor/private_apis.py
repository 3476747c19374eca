"""The private Keras and TensorFlow APIs that going on where another process was needs.

Nothing public gives the states of global random numbers, nor waits for callbacks in threads. Checked with
Keras 3.15.1 and TensorFlow 2.21.0; Keras 3.12 has the same names.
"""

from typing import Any

from memfit.training.private_apis import build


def random_states() -> dict[str, Any]:
    """The states of Keras's and TensorFlow's global random numbers; None for those that nobody has drawn from."""
    from keras.src.backend.common import global_state
    from tensorflow.python.eager import context
    from tensorflow.python.ops import stateful_random_ops

    keras_own = global_state.get_global_attribute("global_seed_generator")
    generator = stateful_random_ops.global_generator
    rng = getattr(context.context(), "_rng", None)
    return {
        "keras": None if keras_own is None else keras_own.state.numpy(),
        "generator": None if generator is None else generator.state.numpy(),
        "tensorflow": None if rng is None else rng.getstate(),
    }


def put_back_random_states(states: dict[str, Any]) -> None:
    """Lets Keras's and TensorFlow's global random numbers go on from what `random_states` returned."""
    from keras.src.random.seed_generator import global_seed_generator
    from tensorflow.python.eager import context
    from tensorflow.python.ops import stateful_random_ops

    if states["keras"] is not None:
        global_seed_generator().state.assign(states["keras"])
    if states["generator"] is not None:
        stateful_random_ops.get_global_generator().state.assign(states["generator"])
    rng = getattr(context.context(), "_rng", None)
    if states["tensorflow"] is not None and rng is not None:
        rng.setstate(states["tensorflow"])


def build_from_specs(model: Any, specs: Any) -> None:
    """Creates the variables that a model's first step would create, from the specs of its batches."""
    from keras.src.trainers.data_adapters import data_adapter_utils

    build(model, *data_adapter_utils.unpack_x_y_sample_weight(specs))


def flush(callbacks: Any) -> None:
    """Waits for callbacks that Keras runs in threads."""
    callbacks._flush_futures()


def plain_logs(logs: Any) -> Any:
    """Logs of a step as plain numbers, as Keras gives them to callbacks."""
    from keras.src.utils.python_utils import pythonify_logs

    return pythonify_logs(logs)
