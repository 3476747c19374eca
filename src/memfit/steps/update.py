"""The optimizer's update as a chain of single writes, so that one that was cut off can be finished.

An update that runs out of memory half-way leaves some weights moved and others not, and which ones depends on
how threads happened to run. Here Keras's own optimizer is traced as it is, and then its writes are put in one
line: what a write needs is computed first (which may fail, and then nothing has changed), the write itself takes
over a buffer or works in place (which cannot fail), and a counter notes it. After a failure the same update is
traced once more without the writes that were done.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import tensorflow as tf

from memfit.compat.attributes import overridden
from memfit.compat.tf_graphs import Op, make_variable, run_after, set_input
from memfit.steps.gradients import GradientShelf, empties, empty
from memfit.steps.placeholder_buffers import UpdatePlaceholders
from memfit.steps.slots import innermost
from memfit.steps.writes import (
    Group,
    Unchainable,
    bypass_bundles,
    groups,
    must_run,
    sources,
    values_of,
    writing,
)


class Update:
    """The update of a model's weights from the gradients on a shelf."""

    def __init__(self, model: Any, shelf: GradientShelf) -> None:
        self._model, self._shelf = model, shelf
        self._unchainable: str | None = None
        self._ends = {0}  # after how many writes an update may be taken up again
        self._spare: dict[Any, tf.Variable] = {}
        with tf.device("CPU:0"):  # on a GPU every count would be a kernel of its own
            self._written = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._whole: Callable[[], None] | None = None
        self.from_host = False  # whether gradients are taken from the host's memory
        self._placeholders = UpdatePlaceholders(model.trainable_variables)

    def run(self) -> None:
        """Applies the gradients."""
        if not self._shelf.weights:
            return
        if self.from_host:
            self._shelf.move_to_host()
        if self._whole is None:
            self._whole = self._traced(0)
            self._placeholders.free()
        self._whole()
        self._shelf.let_go_of_host()

    @property
    def begun(self) -> bool:
        """Whether an update that was cut off had changed something."""
        return self._unchainable is not None or int(self._written) > 0

    @property
    def lost(self) -> str | None:
        """Why an update that was cut off cannot be finished, or None where it can."""
        if self._unchainable is not None:
            return f"this optimizer's update cannot be continued half-way ({self._unchainable})"
        return None if int(self._written) in self._ends else "it stopped between writes that belong together"

    def finish_from_host(self) -> None:
        """Applies what an update that was cut off has not applied, as all later ones, from the host's memory.

        Beside weights and optimizer there is then only the gradient of the weight whose turn it is.
        """
        self.from_host, self._whole = True, None
        done = int(self._written)
        if done:
            self._shelf.move_to_host()
            self._traced(done)()
            self._shelf.let_go_of_host()
        else:
            self.run()

    def abandon(self) -> None:
        """Lets go of gradients that will not be applied."""
        self._shelf.clear()
        self._shelf.let_go_of_host()
        self._written.assign(0)

    def _traced(self, done: int) -> Callable[[], None]:
        """The update without its first writes."""

        def update() -> None:
            graph = tf.compat.v1.get_default_graph()
            optimizer = innermost(self._model.optimizer)
            own = optimizer.apply
            weights = self._shelf.weights
            gradients = [self._shelf.read(weight) for weight in weights]

            def apply(*args: Any, **kwargs: Any) -> None:
                # Under loss scaling this is the graph of a branch, and the gradients were read outside of it.
                here = tf.compat.v1.get_default_graph()
                begin = 0 if here is graph else len(here.get_operations())
                own(*args, **kwargs)
                ops = here.get_operations()[begin:]
                bypass_bundles(ops)
                last = self._chain(ops, done)
                if here is not graph and last is not None:
                    # What loss scaling does after its optimizer is the rest of that branch: it waits too.
                    tf.control_dependencies([last]).__enter__()

            with overridden(optimizer, apply=apply):
                self._model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            with tf.control_dependencies(writing(graph.get_operations())):
                all_done = tf.no_op()  # one edge for each op that follows, not one from every write
            with tf.control_dependencies([all_done]):
                cleared = self._shelf.clear()
            with tf.control_dependencies(cleared):
                self._written.assign(0, read_value=False)

        traced: Callable[[], None] = tf.function(update, autograph=False).get_concrete_function()
        return traced

    def _chain(self, ops: Sequence[Any], done: int) -> Any:
        """Puts the writes among these ops in one line, without those that are done; returns the line's end."""
        try:
            line = groups(ops)
        except Unchainable as reason:
            self._unchainable = str(reason)
            return None
        releases = self._releases(line)
        nothing = empties(buffer for buffers in releases.values() for buffer in buffers)
        counts = list(accumulate(len(group.writes) for group in line))
        done_already = [group for group, count in zip(line, counts, strict=True) if count <= done]
        for op in [op for group in done_already for op in group.writes]:
            self._leave_out(op)
        # The first group waits too, so that what is traced again is optimized as it was: to the last bit.
        with tf.control_dependencies(must_run(op for group in done_already for op in group.computes)):
            last = tf.no_op()
        placed: set[Any] = set()
        for number, (group, count) in enumerate(zip(line, counts, strict=True)):
            if count <= done:
                continue
            computes = [op for op in group.computes if op not in placed]
            placed.update(computes)
            last = self._do(group, computes, last, count - len(group.writes))
            self._ends.add(count)
            with tf.control_dependencies([last]):
                for buffer in releases.get(number, ()):
                    buffer.assign(nothing[buffer.dtype], read_value=False)
        return last

    def _do(self, group: Group, computes: Sequence[Any], last: Any, count: int) -> Any:
        """Lets a group compute and then write, after the group before it; returns the op that notes the end."""
        for op in sources(computes):
            run_after(op, last)
        ready = {tensor.op for op in group.writes for tensor in values_of(op)}
        for op in group.writes:
            for other in ready - {tensor.op for tensor in op.inputs}:
                run_after(op, other)
            run_after(op, last)
            count += 1
            with tf.control_dependencies([op]):
                last = tf.raw_ops.AssignVariableOp(
                    resource=self._written.handle, value=tf.constant(count, tf.int64)
                )
        return last

    def _releases(self, line: Sequence[Group]) -> dict[int, list[tf.Variable]]:
        """By group, the buffers on the shelf that no later one reads, where gradients have none of their own.

        Not those that a branch or a check reads: it runs again when the update is traced again.
        """
        if self._shelf.own_buffers:
            return {}
        graph = tf.compat.v1.get_default_graph()
        buffers = {graph.capture(buffer.handle).name: buffer for buffer in self._shelf.buffers()}
        last: dict[str, int] = {}
        kept: set[str] = set()
        for number, group in enumerate(line):
            read = group.reads & buffers.keys()
            last.update(dict.fromkeys(read, number))
            if must_run(group.computes):
                kept |= read
        releases: dict[int, list[tf.Variable]] = {}
        for name in last.keys() - kept:
            releases.setdefault(last[name], []).append(buffers[name])
        return releases

    def _leave_out(self, op: Op) -> None:
        """Lets a write go to a variable that is never read; what it was computed from is then not computed."""
        values = values_of(op)
        set_input(op, 0, op.graph.capture(self._nowhere(values[-1].dtype).handle))
        for number, tensor in enumerate(values, 1):
            unknown = tf.raw_ops.PlaceholderWithDefault(input=empty(tensor.dtype), shape=None)
            set_input(op, number, unknown)

    def _nowhere(self, dtype: Any) -> tf.Variable:
        """A variable with no values and any shape."""
        if dtype not in self._spare:
            with tf.init_scope():
                self._spare[dtype] = make_variable(empty(dtype))
        return self._spare[dtype]
