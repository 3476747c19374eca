"""The private APIs of TensorFlow and Keras this room uses.

Checked with TensorFlow 2.19.0 and 2.21.0, Keras 3.12.0 and 3.15.1.
"""

from typing import Any


def read_xspace(data: bytes) -> Any:
    """Reads a profile; its proto ships with TensorFlow, outside of its public API."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(data)
    return space


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


def know_own_variables(optimizer: Any) -> None:
    """Lets an optimizer that came from another process find its variables again: it knows them by `id`."""
    while optimizer is not None:
        variables = getattr(optimizer, "_trainable_variables", None) or []
        optimizer._trainable_variables_indices = {
            optimizer._var_key(variable): index for index, variable in enumerate(variables)
        }
        optimizer = getattr(optimizer, "inner_optimizer", None)
