"""TensorFlow's private parts of the runtime: its start, its options, its random numbers, its protos."""

import sys
from collections.abc import Callable
from typing import Any


def is_initialised() -> bool:
    """Says whether TensorFlow has started its devices in this process, without starting them.

    The public calls that list logical devices or ask for memory figures initialise the devices themselves.
    """
    context = sys.modules.get("tensorflow.python.eager.context")
    return bool(context is not None and context.context()._initialized)


def read_xspace(data: bytes) -> Any:
    """Reads a profile; its proto ships with TensorFlow, outside of its public API."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(data)
    return space


def skip_idle_passes() -> None:
    """Lets TensorFlow leave out what it tries in vain with functions on a CPU, to save half a second of ten.

    Layouts are only changed for GPUs, and the memory's pass only moves something where four fifths of it are taken.
    """
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    def skip(options: Any) -> None:
        options.layout_optimizer = RewriterConfig.OFF
        options.memory_optimization = RewriterConfig.NO_MEM_OPT

    _rewrite(skip)


def optimise_once() -> None:
    """Lets TensorFlow go over functions that are called from now on once instead of twice, to save a second.

    The second time it finds next to nothing: 19 of the 10,355 ops of ResNet50's training step.
    """
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    def once(options: Any) -> None:
        options.meta_optimizer_iterations = RewriterConfig.ONE

    _rewrite(once)


def read_hlo(data: bytes) -> Any:
    """Reads what XLA made of a function, with its buffer assignment; the proto ships as the profile's does."""
    from tensorflow.compiler.xla.service import hlo_pb2

    module = hlo_pb2.HloProto()
    module.ParseFromString(data)
    return module


def is_tf_variable(obj: Any) -> bool:
    """Whether `obj` is TensorFlow's own variable, of which Keras's variables are wrappers."""
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    return isinstance(obj, BaseResourceVariable)


def is_compiled_function(obj: Any) -> bool:
    """Whether `obj` is a `tf.function`."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    return isinstance(obj, Function)


def is_strategy(obj: Any) -> bool:
    """Whether `obj` is a distribution strategy, the default one included."""
    from tensorflow.python.distribute.distribute_lib import StrategyBase

    return isinstance(obj, StrategyBase)


def is_lookup_table(obj: Any) -> bool:
    """Whether `obj` is a table of TensorFlow, as text layers have one for their vocabulary."""
    from tensorflow.python.ops.lookup_ops import MutableHashTable, StaticHashTable

    return isinstance(obj, StaticHashTable | MutableHashTable)


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


def global_seed() -> int | None:
    """The seed given to `tf.random.set_seed` or `keras.utils.set_random_seed`; None where nobody gave one."""
    from tensorflow.python.eager import context

    seed: int | None = context.global_seed()
    return seed


def canonical(hlo: bytes) -> bytes:
    """Returns a serialized HLO module with its maps in order, so that equal modules have equal bytes."""
    from tensorflow.compiler.xla.service import hlo_pb2

    module = hlo_pb2.HloModuleProto()
    module.ParseFromString(hlo)
    serialized: bytes = module.SerializeToString(deterministic=True)
    return serialized


def _rewrite(change: Callable[[Any], None]) -> None:
    """Changes how TensorFlow rewrites functions that are called from now on."""
    from tensorflow.core.protobuf.config_pb2 import ConfigProto
    from tensorflow.python.eager import context

    own = context.context()
    config = ConfigProto()
    if own._config is not None:
        config.CopyFrom(own._config)
    change(config.graph_options.rewrite_options)
    own._config = config
    own.function_call_options = None
