"""A step compiled as Keras would compile it, with the shapes that the data promises."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.tf_runtime import refuses_to_run_one_by_one
from memfit.data.shapes import leaves_of
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import run_one_by_one

Body = Callable[[Any], Any]  # a function of a batch, such as `model.train_step`


class Executor:
    """Runs a step, one op after the other where it computes activations again."""

    def __init__(self, recipe: Recipe) -> None:
        self._context = nullcontext if recipe.segments is None else run_one_by_one

    def run(self, function: Callable[[], Any]) -> Any:
        """Calls a function that runs the step, or traces it."""
        try:
            with self._context():
                return function()
        except tf.errors.FailedPreconditionError as error:
            # Loops in a user's own `tf.function` that was traced before cannot run one by one; nothing has run.
            if self._context is nullcontext or not refuses_to_run_one_by_one(error):
                raise
        self._context = nullcontext
        return function()


class CompiledStep:
    """A step as a `tf.function`, traced once for each promise of its data.

    Not for the batch at hand: a shorter last batch would be another trace, and where Keras's losses know the size
    of a batch they are averaged otherwise.

    Args:
        model: The model, which says whether steps run eagerly or under XLA.
    """

    def __init__(self, model: keras.Model, body: Body) -> None:
        self._model = model
        self._body = tf.autograph.experimental.do_not_convert(body)
        self._functions: dict[Any, Any] = {}

    def __call__(self, data: Any, spec: Any = None) -> Any:
        """Runs the step.

        Args:
            spec: What is known of all batches (the `element_spec` of a dataset); None where nothing is.
        """
        # Data may have optional parts, which are to be None in a step.
        data = keras.tree.map_structure(lambda leaf: None if _is_optional(leaf) else leaf, data)
        if self._model.run_eagerly:
            return self._body(data)
        present = leaves_of(data)
        promises = [leaf for leaf in keras.tree.flatten(spec) if _is_promise(leaf)]
        signature = tuple(promises) if len(promises) == len(present) else None
        return self._function(data, signature)(*present)

    def trace(self, spec: Any) -> Any:
        """Traces the step for all batches of a spec; returns its ConcreteFunction, or None if it runs eagerly."""
        if self._model.run_eagerly:
            return None
        return self._function(spec, tuple(leaf for leaf in keras.tree.flatten(spec) if _is_promise(leaf)))

    def _function(self, data: Any, signature: tuple[Any, ...] | None) -> Any:
        if signature not in self._functions:
            # Not the batch itself, which the function would hold.
            structure = keras.tree.map_structure(lambda leaf: leaf is not None, data)
            function = tf.function(
                lambda *tensors: self._body(_pack(structure, tensors)),
                reduce_retracing=True,
                jit_compile=self._model.jit_compile,
                autograph=False,
            )
            if signature is not None:
                function = function.get_concrete_function(*signature)
            self._functions[signature] = function
        return self._functions[signature]


def _pack(structure: Any, tensors: Sequence[Any]) -> Any:
    """Puts tensors where a structure is true, and None elsewhere."""
    remaining = iter(tensors)
    return keras.tree.map_structure(lambda present: next(remaining) if present else None, structure)


def _is_optional(leaf: Any) -> bool:
    return isinstance(leaf, tf.experimental.Optional)


def _is_promise(leaf: Any) -> bool:
    """Whether a part of a dataset's `element_spec` promises a tensor."""
    return isinstance(leaf, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec)
