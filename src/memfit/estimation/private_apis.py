"""The private APIs of TensorFlow and Keras this room uses.

Checked with TensorFlow 2.19.0 and 2.21.0, Keras 3.12.0 and 3.15.1.
"""

from collections.abc import Callable
from typing import Any


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


def is_keras_object(obj: Any) -> bool:
    """Whether `obj` is one of the objects Keras saves: a layer, model, optimizer, metric or loss."""
    from keras.src.saving.keras_saveable import KerasSaveable

    return isinstance(obj, KerasSaveable)


def is_tracked_container(obj: Any) -> bool:
    """Whether `obj` is a list, dict or set that Keras watches for layers and variables."""
    from keras.src.utils.tracking import TrackedDict, TrackedList, TrackedSet

    return isinstance(obj, TrackedDict | TrackedList | TrackedSet)


def is_strategy(obj: Any) -> bool:
    """Whether `obj` is a distribution strategy, the default one included."""
    from tensorflow.python.distribute.distribute_lib import StrategyBase

    return isinstance(obj, StrategyBase)


def dataset_batch_size(dataset: Any) -> int | None:
    """The batch size of a tf.data pipeline, from its element shapes or its last `batch`; None where neither tells.

    Nothing is read: another iterator would change the order in which a shuffle gives the rest.
    """
    import keras

    shapes = [getattr(leaf, "shape", None) for leaf in keras.tree.flatten(dataset.element_spec)]
    firsts = {shape[0] for shape in shapes if shape is not None and shape.rank}
    if firsts and None not in firsts:
        return int(firsts.pop()) if len(firsts) == 1 else None
    if getattr(dataset, "_batch_size", None) is not None:
        return int(dataset._batch_size)
    sizes = {dataset_batch_size(part) for part in dataset._inputs()}
    return sizes.pop() if len(sizes) == 1 else None


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


def know_own_variables(optimizer: Any) -> None:
    """Lets an optimizer that came from another process find its variables again: it knows them by `id`."""
    while optimizer is not None:
        variables = getattr(optimizer, "_trainable_variables", None) or []
        optimizer._trainable_variables_indices = {
            optimizer._var_key(variable): index for index, variable in enumerate(variables)
        }
        optimizer = getattr(optimizer, "inner_optimizer", None)


def optimizer_slots(optimizer: Any) -> list[list[Any]]:
    """Returns the lists in which an optimizer keeps a slot for each trainable variable."""
    count = len(optimizer._trainable_variables)
    return [
        slots
        for slots in vars(optimizer).values()
        if isinstance(slots, list)
        and len(slots) == count
        and slots is not optimizer._trainable_variables
        and all(slot is None or hasattr(getattr(slot, "value", None), "handle") for slot in slots)
    ]


def slot_number(optimizer: Any, variable: Any) -> int:
    """Returns the place of a variable in an optimizer's lists."""
    return int(optimizer._get_variable_index(variable))


def then_copied(optimizer: Any, copy: Callable[[], None]) -> None:
    """Calls `copy` whenever an optimizer has gone through the updates of its variables."""
    update_all = optimizer._backend_update_step

    def update_and_copy(*args: Any, **kwargs: Any) -> None:
        update_all(*args, **kwargs)
        copy()

    optimizer._backend_update_step = update_and_copy
