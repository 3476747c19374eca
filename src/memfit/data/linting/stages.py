"""A pipeline as its stages: what each one does, holds and hands on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# tf.data's ops by what they do; the versions (V2, V3) and "Parallel" are cut off before looking here.
_KINDS = {
    "BatchDataset": "batch",
    "PaddedBatchDataset": "batch",
    "MapAndBatchDataset": "batch",
    "CacheDataset": "cache",
    "ConcatenateDataset": "concatenate",
    "FilterDataset": "filter",
    "FlatMapDataset": "flat_map",
    "InterleaveDataset": "interleave",
    "MapDataset": "map",
    "PrefetchDataset": "prefetch",
    "RepeatDataset": "repeat",
    "ShardDataset": "shard",
    "ShuffleDataset": "shuffle",
    "ShuffleAndRepeatDataset": "shuffle",
    "SkipDataset": "skip",
    "TakeDataset": "take",
    "UnbatchDataset": "unbatch",
    "WindowDataset": "window",
    "ZipDataset": "zip",
}


@dataclass(frozen=True)
class Node:
    """One op of a stage's function: its kind, its name, its constant where it is one, and its inputs' names."""

    op: str
    name: str
    value: float | None
    inputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a pipeline.

    Attributes:
        op: TensorFlow's name of it, such as "ParallelMapDatasetV2".
        place: Where it is, counted from the source, such as "3 shuffle".
        inputs: The stages it reads from.
        inner: For flat_map and interleave, the last stage of the datasets that its function makes.
        shapes: The shapes of an element's components; None for one of unknown rank.
        types: Their dtypes' names.
        item_bytes: The bytes of one item of each component; 0 for text, whose size no graph tells.
        count: How many elements it hands on; None where unknown, infinity where endless.
        numbers: Its whole-number arguments in the op's order (buffer size, batch size, calls in parallel).
        texts: Its text arguments (a cache's file).
        constant_bytes: The bytes of the tensors that it holds.
        function: TensorFlow's name of its function.
        nodes: The ops of its function, with those of the functions called from there.
        reshuffles: For a shuffle, whether every iteration has another order.
        files: For a source of files, how many; None where unknown.
    """

    op: str
    place: str
    inputs: tuple["Stage", ...] = ()
    inner: "Stage | None" = None
    shapes: tuple[tuple[int | None, ...] | None, ...] = ()
    types: tuple[str, ...] = ()
    item_bytes: tuple[int, ...] = ()
    count: float | None = None
    numbers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    constant_bytes: int = 0
    function: str = ""
    nodes: tuple[Node, ...] = field(default=(), repr=False)
    reshuffles: bool = True
    files: int | None = None

    @property
    def kind(self) -> str:
        """What it does: "map", "batch", "shuffle", ...; "source" without inputs; "other" for the rest."""
        return kind_of(self.op) or ("other" if self.inputs else "source")

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
        for shape, item in zip(self.shapes, self.item_bytes, strict=True):
            if shape is None:
                return None
            filled = (batch_size, *shape[1:]) if shape and shape[0] is None else shape
            if None in filled:
                return None
            total += math.prod(n or 0 for n in filled) * item
        return total

    def upstream(self) -> Iterator["Stage"]:
        """All stages whose data come through this one, the nearest first."""
        seen: set[int] = set()
        todo = [*([self.inner] if self.inner else []), *self.inputs]
        while todo:
            stage = todo.pop(0)
            if id(stage) not in seen:
                seen.add(id(stage))
                yield stage
                todo += [*([stage.inner] if stage.inner else []), *stage.inputs]

    def line(self) -> Iterator["Stage"]:
        """The stages before this one as long as there is one way: not beyond a zip or a mixture of datasets."""
        stage = self
        while len(stage.inputs) == 1:
            stage = stage.inputs[0]
            yield stage

    def ops(self) -> set[str]:
        """The kinds of the ops in its function."""
        return {node.op for node in self.nodes}


def kind_of(op: str) -> str:
    """Returns what a tf.data op does, "" for one that no rule asks for."""
    plain = op.removeprefix("Legacy").removeprefix("Parallel").removeprefix("Experimental")
    return _KINDS.get(plain.rstrip("V0123456789"), "")


def downstream_of(stages: list[Stage], stage: Stage) -> list[Stage]:
    """Returns the stages that data of `stage` go through afterwards."""
    return [later for later in stages if any(earlier is stage for earlier in later.upstream())]


def dims(shape: Any) -> tuple[int | None, ...] | None:
    """Returns a TensorShapeProto as numbers, None for what is not known."""
    if shape.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else int(dim.size) for dim in shape.dim)
