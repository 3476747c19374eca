"""Sending a Keras model to another process by value: its whole object, without the numbers in its weights.

Keras's own pickling saves and reloads the model, which needs a `get_config` of every class and registered names.
An estimate needs neither that nor the weights' values, so every variable is sent as its shape and comes up as
zeros, and everything else is pickled as it stands. The caller's model is only read.
"""

import io
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cloudpickle

from memfit.compat.keras_globals import name_counters
from memfit.compat.keras_layers import is_keras_object, is_tracked_container
from memfit.compat.tf_runtime import TRACKING_ATTRIBUTES, compile_options, contents_of, place_in_time
from memfit.errors import CannotTell

# What Keras makes of a model's steps, and makes anew in the other process.
_REMADE = ("train_function", "test_function", "predict_function")

_FRAMES, _STACK_BYTES = 200_000, 512 * 2**20
# What only a weak reference of the sender held may have no other holder here.
_kept: list[Any] = []
# The variables that came from the sender, and for each how many of them were made before it.
_received: list[Any] = []
_places: list[int] = []


def packed(model: Any, *others: Any) -> bytes:
    """Returns a model, with anything else that goes with it, as bytes for `unpacked`.

    Raises:
        CannotTell: If something in the model cannot be sent.
    """
    try:
        with _code_by_value(getattr(model, "code_module", None)):
            return run_with_deep_stack(_dumped, (_KerasSettings(), model, others))
    except Exception as error:  # pickling raises whatever an object's own methods raise
        raise CannotTell(
            f"The model must be sendable to another process, and a part of it is not ({error})",
            received=type(model).__name__,
            remedy="Keep open files, locks, generators and tensors of a graph out of the model's attributes",
        ) from error


@contextmanager
def _code_by_value(module: str | None) -> Iterator[None]:
    """Lets functions of a module be sent with all that they name there.

    By its name a function would be imported anew, and with it a model of its own beside the one that was sent.
    """
    imported = None if module in (None, "__main__") else sys.modules.get(str(module))
    if imported is None or imported.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(imported)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(imported)


def _dumped(value: Any) -> bytes:
    stream = io.BytesIO()
    pickler = Pickler(stream)
    pickler.dump(value)
    return stream.getvalue() + pickler.order_of_variables()


def run_with_deep_stack(function: Callable[[Any], bytes], value: Any) -> bytes:
    # A functional model is a linked list of layers to the pickler: some frames for each of its hundreds.
    answer: list[bytes | Exception] = []

    def run() -> None:
        try:
            answer.append(function(value))
        except Exception as error:  # re-raised by the thread that waits
            answer.append(error)

    limit, size = sys.getrecursionlimit(), threading.stack_size(_STACK_BYTES)
    sys.setrecursionlimit(_FRAMES)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def unpacked(data: bytes) -> tuple[Any, tuple[Any, ...]]:
    """Returns the model and what went with it; takes over the sender's Keras settings, in a process of its own."""
    stream = io.BytesIO(data)
    _received.clear()
    _, model, others = cloudpickle.load(stream)
    _places[:] = cloudpickle.load(stream)
    return model, others


class Pickler(cloudpickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self._places: list[int] = []

    def order_of_variables(self) -> bytes:
        """Returns, pickled, how many of the variables that were written were made before each of them."""
        ranks = {place: rank for rank, place in enumerate(sorted(self._places))}
        return cloudpickle.dumps([ranks[place] for place in self._places])

    def reducer_override(self, obj: Any) -> Any:
        import tensorflow as tf

        if tf.is_symbolic_tensor(obj):
            raise TypeError("a tensor of a graph cannot be pickled")
        if isinstance(obj, tf.Variable):
            self._places.append(place_in_time(obj))
            return _zeros, (tuple(obj.shape), obj.dtype.name, obj.trainable, obj.name.partition(":")[0])
        if isinstance(obj, tf.types.experimental.PolymorphicFunction):
            return _recompiled, (obj.python_function, compile_options(obj))
        if isinstance(obj, tf.lookup.StaticHashTable | tf.lookup.experimental.MutableHashTable):
            return _table, contents_of(obj)
        if isinstance(obj, weakref.ReferenceType):
            return _weak, (obj(),)
        if isinstance(obj, tf.distribute.Strategy):
            return _default_strategy, ()
        by_value = is_keras_object(obj) or _finds_attributes_itself(obj)
        if is_tracked_container(obj) or (by_value and isinstance(obj, dict | list | set)):
            return _empty, (type(obj),), (vars(obj), _items(obj)), None, None, _fill
        if by_value:
            return _by_value(obj)
        return super().reducer_override(obj)


def _finds_attributes_itself(obj: Any) -> bool:
    """Whether unpickling would ask `obj` for attributes before it has any, which its `__getattr__` may not survive.

    Keras's preprocessing layers hold such an object, and EfficientNet holds such layers. So does a dict of
    settings whose items are its attributes.
    """
    cls: Any = type(obj)
    return (
        not isinstance(obj, type | ModuleType | tuple)
        and hasattr(cls, "__getattr__")
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and not hasattr(cls, "__setstate__")
        and hasattr(obj, "__dict__")
    )


def _by_value(obj: Any) -> tuple[Any, ...]:
    state = {
        name: None if name in _REMADE else value
        for name, value in vars(obj).items()
        if not name.startswith(TRACKING_ATTRIBUTES)  # for TensorFlow's checkpoints; nothing is saved here
    }
    return _bare, (type(obj),), state, None, None, _restore


def _bare(cls: type) -> Any:
    return object.__new__(cls)


def _restore(obj: Any, state: dict[str, Any]) -> None:
    # Not through __setattr__: Keras tracks what is set there, and the tracking itself is part of the state.
    vars(obj).update(state)


def _default_strategy() -> Any:
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _items(obj: Any) -> list[Any]:
    return list(obj.items()) if isinstance(obj, dict) else list(obj)


def _empty(cls: Any) -> Any:
    return cls.__new__(cls)


def _fill(obj: Any, state: tuple[dict[str, Any], list[Any]]) -> None:
    # As the plain container it is: its own methods would track every item a second time.
    vars(obj).update(state[0])
    if isinstance(obj, list):
        list.extend(obj, state[1])
    elif isinstance(obj, dict):
        dict.update(obj, state[1])
    else:
        set.update(obj, state[1])


def _weak(obj: Any) -> Any:
    _kept.append(obj)
    return weakref.ref(obj) if obj is not None else _gone


def _gone() -> None:
    """Stands in for a weak reference whose object has gone."""


def _zeros(shape: tuple[int, ...], dtype: str, trainable: bool, name: str) -> Any:
    import tensorflow as tf

    _received.append(tf.Variable(tf.zeros(shape, dtype), trainable=trainable, name=name))
    return _received[-1]


def made_in_order(variables: Iterable[Any]) -> list[Any]:
    """Returns Keras variables in the order in which they were made: those that were sent, then those made here.

    It is not that of a model's layers: a seed is made with its layer, which may be before those in front of it.
    """

    places = {id(sent): place for sent, place in zip(_received, _places, strict=True)}

    def place(variable: Any) -> tuple[bool, int]:
        sent = places.get(id(variable.value))
        return sent is None, place_in_time(variable.value) if sent is None else sent

    return sorted(variables, key=place)


def _table(keys: Any, values: Any, key_type: str, value_type: str, default: Any) -> Any:
    import tensorflow as tf

    if not len(keys):
        return tf.lookup.experimental.MutableHashTable(key_type, value_type, default)
    # Of a table that cannot change TensorFlow knows the shape of what it finds, as layers need it.
    contents = tf.lookup.KeyValueTensorInitializer(keys, values, key_type, value_type)
    return tf.lookup.StaticHashTable(contents, default)


def _recompiled(function: Any, options: dict[str, Any]) -> Any:
    import tensorflow as tf

    return tf.function(function, **options)


class _KerasSettings:
    """The global Keras settings of the sender, which are those of the receiver once it is unpickled."""

    def __init__(self) -> None:
        import keras

        self.floatx = keras.config.floatx()
        self.epsilon = keras.config.epsilon()
        self.image_data_format = keras.config.image_data_format()
        self.policy = keras.config.dtype_policy().name
        self.names = dict(name_counters())

    def __setstate__(self, state: dict[str, Any]) -> None:
        import keras

        keras.config.set_floatx(state["floatx"])
        keras.config.set_epsilon(state["epsilon"])
        keras.config.set_image_data_format(state["image_data_format"])
        keras.config.set_dtype_policy(state["policy"])
        # Layers that are made when the model is built are to have the names that they get at the sender's.
        name_counters().clear()
        name_counters().update(state["names"])
