"""A pipeline as its stages, read from the graph that TensorFlow writes for it: what each does and holds."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from memfit.compat.tf_datasets import dataset_graph, source_tensors

# tf.data's ops by what they do, without their version (V2, V3), "Parallel" and "Dataset".
_KINDS = {
    "Batch": "batch", "PaddedBatch": "batch", "MapAndBatch": "batch", "Cache": "cache",
    "Concatenate": "concatenate", "Filter": "filter", "FlatMap": "flat_map", "Interleave": "interleave",
    "Map": "map", "Prefetch": "prefetch", "Repeat": "repeat", "Shard": "shard", "Shuffle": "shuffle",
    "ShuffleAndRepeat": "shuffle", "Skip": "skip", "Take": "take", "Unbatch": "unbatch", "Window": "window",
    "Zip": "zip",
}  # fmt: skip
_FILES = ("TextLineDataset", "TFRecordDataset", "FixedLengthRecordDataset")


def read_stages(dataset: Any) -> list["Stage"]:
    """Returns the stages of a dataset from the source on, those inside of flat_map and interleave included.

    Raises:
        tf.errors.OpError: If TensorFlow cannot write the graph of this dataset.
    """
    graph = dataset_graph(dataset)
    library = {function.signature.name: function for function in graph.library.function}
    reader = _Reader(graph.node, library, "")
    reader.stage(next(node for node in graph.node if node.op == "_Retval").input[0])
    return reader.stages


def held_tensors(dataset: Any) -> int:
    """Returns the bytes of the tensors that the sources hold."""
    tensors = [tensor for tensor in source_tensors(dataset) if hasattr(tensor, "shape")]
    return sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)


class Node(NamedTuple):
    """One op of a stage's function: its kind, its name, its constant where it is one, and its inputs' names."""

    op: str
    name: str
    value: float | None
    inputs: tuple[str, ...]


class Stage:
    """One step of a pipeline.

    Attributes:
        op: TensorFlow's name of it, such as "ParallelMapDatasetV2".
        kind: What it does: "map", "batch", "shuffle", ...; "source" without inputs; "other" for the rest.
        place: Where it is, counted from the source, such as "3 shuffle".
        inputs: The stages it reads from.
        inner: For flat_map and interleave, the last stage of the datasets that its function makes.
        function: TensorFlow's name of its function.
        nodes: The ops of its function, with those of the functions called from there.
        shapes: The shapes of an element's components; None for one of unknown rank.
        types: Their dtypes' names.
        numbers: Its whole-number arguments in the op's order (buffer size, batch size, calls in parallel).
        texts: Its text arguments (a cache's file).
        constant_bytes: The bytes of the tensors that it holds.
        count: How many elements it hands on; None where unknown, infinity where endless.
        reshuffles: For a shuffle, whether every iteration has another order.
        files: For a source of files, how many; None where unknown.
    """

    def __init__(
        self, node: Any, place: str, inputs: tuple["Stage", ...], inner: "Stage | None", arguments: list[Any]
    ) -> None:
        name = re.sub(r"^(Legacy)?(Parallel)?(Experimental)?|Dataset(V\d)?$", "", node.op)
        self.op: str = node.op
        self.kind = _KINDS.get(name, "other" if inputs else "source")
        self.place = f"{place} {_KINDS.get(name, name)}"
        self.inputs, self.inner = inputs, inner
        self.function, self.nodes = "", tuple[Node, ...]()
        types = node.attr["output_types" if "output_types" in node.attr else "Toutput_types"].list.type
        self._dtypes = [tf.dtypes.as_dtype(number) for number in types]
        self.types = tuple(dtype.name for dtype in self._dtypes)
        self.shapes = tuple(_dims(shape) for shape in node.attr["output_shapes"].list.shape)
        known = [argument for argument in arguments if argument is not None]
        self.numbers = tuple(int(value) for value, _ in known if isinstance(value, int))
        self.texts = tuple(value for value, _ in known if isinstance(value, str))
        self.constant_bytes = sum(size for _, size in known)
        self.count = self._count([value for value, _ in known if isinstance(value, tuple)])
        reshuffles = "reshuffle_each_iteration"
        self.reshuffles = reshuffles not in node.attr or node.attr[reshuffles].b
        self.files: int | None = None
        if self.op.startswith(_FILES) and arguments[0] is not None:
            names, _ = arguments[0]
            self.files = int(names[0]) if isinstance(names, tuple) else 1

    @property
    def parallel(self) -> bool:
        """Whether its function runs several times at once."""
        return self.op.startswith(("Parallel", "MapAndBatch", "LegacyParallel"))

    def bytes_with(self, batch_size: int | None = None) -> int | None:
        """The bytes of one element; None where its shape is not known.

        Args:
            batch_size: What to take for the first dimension where it is open.
        """
        total = 0
        for shape, dtype in zip(self.shapes, self._dtypes, strict=True):
            if shape is None:
                return None
            filled = (batch_size, *shape[1:]) if shape and shape[0] is None else shape
            if None in filled:
                return None
            # No graph tells the size of a text.
            total += math.prod(n or 0 for n in filled) * (0 if dtype == tf.string else dtype.size)
        return total

    def upstream(self) -> Iterator["Stage"]:
        """All stages whose data come through this one, the nearest first."""
        seen: set[int] = set()
        todo = [self.inner, *self.inputs]
        while todo:
            stage = todo.pop(0)
            if stage is not None and id(stage) not in seen:
                seen.add(id(stage))
                yield stage
                todo += [stage.inner, *stage.inputs]

    def line(self) -> Iterator["Stage"]:
        """The stages before this one as long as there is one way: not beyond a zip or a mixture of datasets."""
        stage = self
        while len(stage.inputs) == 1:
            stage = stage.inputs[0]
            yield stage

    def ops(self) -> set[str]:
        """The kinds of the ops in its function."""
        return {node.op for node in self.nodes}

    def _count(self, shapes: list[Any]) -> float | None:
        numbers, argument = self.numbers, self.numbers[0] if self.numbers else 0
        if self.op.startswith("TensorSliceDataset"):
            return min((shape[0] for shape in shapes), default=None)
        if self.op.startswith("TensorDataset"):
            return 1
        if self.op.startswith("RangeDataset") and len(numbers) == 3 and numbers[2]:
            return max(0, -(-(numbers[1] - numbers[0]) // numbers[2]))
        if not self.inputs:
            return None
        if self.kind in ("zip", "concatenate"):
            counts = [stage.count for stage in self.inputs if stage.count is not None]
            if len(counts) < len(self.inputs):
                return None
            return min(counts) if self.kind == "zip" else sum(counts)
        before = self.inputs[0].count
        if self.op.startswith("AssertCardinality") and numbers:
            return argument if argument >= 0 else math.inf
        if self.kind == "repeat" and numbers:
            if argument < 0:
                return math.inf
            return None if before is None else before * argument
        if before is None or self.kind in ("filter", "flat_map", "interleave", "unbatch", "window"):
            return None
        if self.kind in ("batch", "shard") and argument > 0 and before != math.inf:
            return -(-before // argument)
        if self.kind == "take" and numbers:
            return before if argument < 0 else min(before, argument)
        if self.kind == "skip" and numbers:
            return max(0, before - argument)
        return before


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
        sources = [self._nodes.get(source.split(":")[0].lstrip("^")) for source in node.input]
        inputs = tuple(self.stage(each.name) for each in sources if each is not None and _is_dataset(each))
        arguments = [None if each is None else _constant(each) for each in sources]
        functions = self._functions(node)
        inner = self._inner(functions) if "FlatMap" in node.op or "Interleave" in node.op else None
        stage = Stage(node, f"{self._within}{len(self.stages) + 1}", inputs, inner, arguments)
        if functions:
            stage.function = functions[0].signature.name
            # The Python name in TensorFlow's, such as "__inference_Dataset_map_load_18".
            python_name = "_".join(stage.function.split("_")[5:-1]) or "?"
            stage.place += f"({python_name.replace('lambda', '<lambda>')})"
            stage.nodes = tuple(self._function_nodes(functions))
        self._stages[name] = stage
        self.stages.append(stage)
        return stage

    def _functions(self, node: Any) -> list[Any]:
        names = [value.func.name for value in node.attr.values() if value.HasField("func")]
        for value in node.attr.values():
            names += [function.name for function in value.list.func]
        return [self._library[name] for name in names if name in self._library]

    def _function_nodes(self, functions: list[Any]) -> Iterator[Node]:
        """The ops of functions and of all they call, but not of the datasets they make: those are stages."""
        seen: set[str] = set()
        todo = list(functions)
        while todo:
            function = todo.pop()
            if function.signature.name in seen:
                continue
            seen.add(function.signature.name)
            for node in function.node_def:
                if not _is_dataset(node):
                    value, _ = _constant(node) or (None, 0)
                    if isinstance(value, bool) or not isinstance(value, int | float):
                        value = None
                    yield Node(node.op, node.name, value, tuple(node.input))
                    todo += self._functions(node)

    def _inner(self, functions: list[Any]) -> Stage | None:
        """The last stage of the datasets that a function makes."""
        for function in functions:
            reader = _Reader(function.node_def, self._library, f"{self._within}{len(self.stages) + 1}.")
            result = reader._nodes.get(next(iter(function.ret.values()), "").split(":")[0])
            while result is not None and result.op == "Identity":
                result = reader._nodes.get(result.input[0].split(":")[0])
            if result is not None and _is_dataset(result):
                inner = reader.stage(result.name)
                self.stages += reader.stages
                return inner
        return None


def _is_dataset(node: Any) -> bool:
    return "Dataset" in node.op


def _constant(node: Any) -> tuple[Any, int] | None:
    """A constant's value where it is one number or text, else its shape, and its bytes; None for other nodes."""
    if node.op != "Const":
        return None
    tensor = node.attr["value"].tensor
    dtype = tf.dtypes.as_dtype(tensor.dtype)
    shape = _dims(tensor.tensor_shape) or ()
    if dtype in (tf.resource, tf.variant):
        return None
    if shape != ():
        return shape, math.prod(n or 0 for n in shape) * dtype.size
    value = tf.make_ndarray(tensor).item()
    return (value.decode(errors="replace") if isinstance(value, bytes) else value), dtype.size


def _dims(shape: Any) -> tuple[int | None, ...] | None:
    """A TensorShapeProto as numbers, None for what is not known."""
    if shape.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else int(dim.size) for dim in shape.dim)
