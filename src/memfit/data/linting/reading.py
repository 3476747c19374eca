"""From a dataset to its stages: the graph that TensorFlow itself writes for it."""

import math
from collections.abc import Iterable
from typing import Any

from memfit.compat.tf_datasets import dataset_graph, source_tensors
from memfit.data.linting.stages import Node, Stage, dims, kind_of

_TEXT_FILES = ("TextLineDataset", "TFRecordDataset", "FixedLengthRecordDataset")


def read_stages(dataset: Any) -> list[Stage]:
    """Returns the stages of a dataset from the source on, those inside of flat_map and interleave included.

    Raises:
        tf.errors.OpError: If TensorFlow cannot write the graph of this dataset.
    """
    graph = dataset_graph(dataset)
    library = {function.signature.name: function for function in graph.library.function}
    reader = _Reader(graph.node, library, "")
    root = next(node for node in graph.node if node.op == "_Retval")
    reader.stage(root.input[0])
    return reader.stages


def held_tensors(dataset: Any) -> int:
    """Returns the bytes of the tensors that the sources hold."""
    return sum(_tensor_bytes(tensor) for tensor in source_tensors(dataset))


def _tensor_bytes(tensor: Any) -> int:
    size = getattr(tensor.dtype, "size", 0)
    known = tensor.shape.num_elements() if hasattr(tensor, "shape") else None
    return (known or 0) * size


class _Reader:
    """Reads one graph: that of the pipeline, or that of a function which makes datasets."""

    def __init__(self, nodes: Iterable[Any], library: dict[str, Any], within: str) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._library = library
        self._within = within
        self._stages: dict[str, Stage] = {}
        self.stages: list[Stage] = []

    def stage(self, name: str) -> Stage:
        name = name.split(":")[0]
        if name in self._stages:
            return self._stages[name]
        node = self._nodes[name]
        from_stages = [i for i in node.input if self._is_dataset(i)]
        inputs = tuple(self.stage(i) for i in from_stages)
        constants = [c for c in map(self._constant, node.input) if c is not None]
        numbers = tuple(int(value) for value, _ in constants if isinstance(value, int))
        inner = self._inner(node)
        kind = kind_of(node.op)
        stage = Stage(
            op=node.op,
            place=f"{self._within}{len(self.stages) + 1} {kind or _plain(node.op)}{self._function_name(node)}",
            inputs=inputs,
            inner=inner,
            **self._element(node),
            count=_count(node.op, kind, numbers, inputs, constants),
            numbers=numbers,
            texts=tuple(value for value, _ in constants if isinstance(value, str)),
            constant_bytes=sum(size for _, size in constants),
            function=next((f.signature.name for f in self._functions(node)), ""),
            nodes=tuple(self._function_nodes(node)),
            reshuffles=node.attr["reshuffle_each_iteration"].b
            if "reshuffle_each_iteration" in node.attr
            else True,
            files=_files(node.op, self._constant(node.input[0]) if node.input else None),
        )
        self._stages[name] = stage
        self.stages.append(stage)
        return stage

    def _is_dataset(self, name: str) -> bool:
        node = self._nodes.get(name.split(":")[0])
        return node is not None and "Dataset" in node.op

    def _constant(self, name: str) -> tuple[Any, int] | None:
        """A constant input's scalar value, where it is one, and its bytes."""
        import tensorflow as tf

        node = self._nodes.get(name.split(":")[0].lstrip("^"))
        if node is None or node.op != "Const":
            return None
        tensor = node.attr["value"].tensor
        dtype = tf.dtypes.as_dtype(tensor.dtype)
        shape = dims(tensor.tensor_shape) or ()
        if dtype in (tf.resource, tf.variant):
            return None
        if shape == ():
            value = tf.make_ndarray(tensor).item()
            return (value.decode(errors="replace") if isinstance(value, bytes) else value), dtype.size
        return shape, math.prod(n or 0 for n in shape) * dtype.size

    def _element(self, node: Any) -> dict[str, Any]:
        import tensorflow as tf

        attr = "output_types" if "output_types" in node.attr else "Toutput_types"
        types = [tf.dtypes.as_dtype(number) for number in node.attr[attr].list.type]
        shapes = tuple(dims(shape) for shape in node.attr["output_shapes"].list.shape)
        return {
            "shapes": shapes,
            "types": tuple(dtype.name for dtype in types),
            "item_bytes": tuple(0 if dtype == tf.string else dtype.size for dtype in types),
        }

    def _functions(self, node: Any) -> list[Any]:
        names = [value.func.name for value in node.attr.values() if value.HasField("func")]
        for value in node.attr.values():
            names += [function.name for function in value.list.func]
        return [self._library[name] for name in names if name in self._library]

    def _function_name(self, node: Any) -> str:
        """The Python name of a stage's function, as TensorFlow keeps it: "__inference_Dataset_map_load_18"."""
        for function in self._functions(node)[:1]:
            parts = function.signature.name.split("_")
            return "(" + ("_".join(parts[5:-1]) or "?").replace("lambda", "<lambda>") + ")"
        return ""

    def _function_nodes(self, node: Any) -> list[Node]:
        """The ops of a function and of all it calls, but not of the datasets it makes: those are stages."""
        nodes: list[Node] = []
        seen: set[str] = set()
        todo = self._functions(node)
        while todo:
            function = todo.pop()
            if function.signature.name in seen:
                continue
            seen.add(function.signature.name)
            for inner in function.node_def:
                if "Dataset" in inner.op:
                    continue
                nodes.append(Node(inner.op, inner.name, _scalar(inner), tuple(inner.input)))
                todo += self._functions(inner)
        return nodes

    def _inner(self, node: Any) -> Stage | None:
        if kind_of(node.op) not in ("flat_map", "interleave"):
            return None
        for function in self._functions(node):
            reader = _Reader(function.node_def, self._library, f"{self._within}{len(self.stages) + 1}.")
            result = next(iter(function.ret.values()), "").split(":")[0]
            while result in reader._nodes and reader._nodes[result].op == "Identity":
                result = reader._nodes[result].input[0].split(":")[0]
            if result in reader._nodes and "Dataset" in reader._nodes[result].op:
                inner = reader.stage(result)
                self.stages += reader.stages
                return inner
        return None


def _plain(op: str) -> str:
    return op.removesuffix("V2").removesuffix("V3").removesuffix("Dataset").removeprefix("Experimental")


def _scalar(node: Any) -> float | None:
    import tensorflow as tf

    if node.op != "Const" or dims(node.attr["value"].tensor.tensor_shape) != ():
        return None
    dtype = tf.dtypes.as_dtype(node.attr["value"].tensor.dtype)
    if not (dtype.is_floating or dtype.is_integer):
        return None
    return float(tf.make_ndarray(node.attr["value"].tensor))


def _count(
    op: str, kind: str, numbers: tuple[int, ...], inputs: tuple[Stage, ...], constants: list[Any]
) -> float | None:
    """Counts the elements that a stage hands on; infinity for an endless one, None where it is unknown."""
    if op.startswith("TensorSliceDataset"):
        shapes = [value for value, _ in constants if isinstance(value, tuple)]
        return min((shape[0] for shape in shapes), default=None)
    if op.startswith("TensorDataset"):
        return 1
    if op.startswith("RangeDataset") and len(numbers) == 3 and numbers[2]:
        return max(0, -(-(numbers[1] - numbers[0]) // numbers[2]))
    if not inputs:
        return None
    if kind == "zip":
        counts = [stage.count for stage in inputs]
        return min((c for c in counts if c is not None), default=None) if None not in counts else None
    if kind == "concatenate":
        return (
            sum(stage.count for stage in inputs if stage.count is not None)
            if all(stage.count is not None for stage in inputs)
            else None
        )
    return _count_of_one(op, kind, numbers, inputs[0].count)


def _count_of_one(op: str, kind: str, numbers: tuple[int, ...], before: float | None) -> float | None:
    if op.startswith("AssertCardinality") and numbers:
        return numbers[0] if numbers[0] >= 0 else math.inf
    if kind == "repeat" and numbers:
        times = numbers[0] if numbers[0] >= 0 else math.inf
        return (
            None if before is None and times != math.inf else (math.inf if before is None else before * times)
        )
    if before is None or kind in ("filter", "flat_map", "interleave", "unbatch", "window"):
        return before if kind == "take" else None
    if kind == "batch" and numbers and numbers[0] > 0:
        return before if before == math.inf else -(-before // numbers[0])
    if kind == "take" and numbers:
        return before if numbers[0] < 0 else min(before, numbers[0])
    if kind == "skip" and numbers:
        return max(0, before - numbers[0])
    if kind == "shard" and numbers and numbers[0] > 0:
        return before if before == math.inf else -(-before // numbers[0])
    return before


def _files(op: str, names: tuple[Any, int] | None) -> int | None:
    """Counts the files that a source reads, where their names are written in the graph."""
    if not op.startswith(_TEXT_FILES) or names is None:
        return None
    return int(names[0][0]) if isinstance(names[0], tuple) else 1
