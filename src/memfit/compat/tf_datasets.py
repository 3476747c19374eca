"""TensorFlow's private parts of tf.data pipelines: their stages, functions and sources.

Checked with TensorFlow 2.19.0 and 2.21.0.
"""

import mmap
from collections.abc import Iterator
from typing import Any

# Ops that draw random numbers. Their state is in their kernel: a new iteration starts from the seed again, if
# there is one.
RANDOM_OPS = frozenset(
    {
        "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle",
        "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2", "TruncatedNormal",
    }
)  # fmt: skip
# Ops that move a variable on, such as a Keras layer's seed: a pass that is skipped would not have moved it.
MOVING_OPS = frozenset(
    {"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp", "RngReadAndSkip", "RngSkip"}
)
PYTHON_OPS = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})


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
    sizes = {dataset_batch_size(part) for part in inputs_of(dataset)}
    return sizes.pop() if len(sizes) == 1 else None


def note_batch_size(dataset: Any, size: int) -> None:
    """Lets `dataset_batch_size` know the samples in a batch where a function of the pipeline makes batches."""
    dataset._batch_size = size


def dataset_graph(dataset: Any) -> Any:
    """Returns the GraphDef of a whole tf.data pipeline, with its constants and its functions."""
    import tensorflow as tf

    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=dataset._variant_tensor, external_state_policy=1, strip_device_assignment=True
    )
    graph = tf.compat.v1.GraphDef()
    graph.ParseFromString(serialized.numpy())
    return graph


def source_tensors(dataset: Any) -> list[Any]:
    """Returns the tensors that a pipeline's sources hold, without copying them into a graph."""
    return [tensor for part in dataset_parts(dataset) for tensor in getattr(part, "_tensors", [])]


def inputs_of(dataset: Any) -> list[Any]:
    """Returns the datasets that a dataset reads from."""
    return list(dataset._inputs())


def is_device_copy(dataset: Any) -> bool:
    """Whether a dataset is the one of `copy_to_device`, on which `prefetch_to_device` is built."""
    return type(dataset).__name__ in ("_CopyToDeviceDataset", "_MapOnGpuDataset")


def idle_conversions(dataset: Any) -> set[str]:
    """Returns the names of map functions in which `convert_image_dtype` changes nothing.

    It then leaves a mere Identity op in the graph; only the op's traceback tells who made it.
    """
    names = set()
    for part in dataset_parts(dataset):
        function = getattr(traced_map(part), "function", None)
        if function is None:
            continue
        for op in function.graph.get_operations():
            if op.type == "Identity" and any(frame.name == "convert_image_dtype" for frame in op.traceback):
                names.add(function.name.decode())
    return names


def let_go_of_pages(array: Any) -> None:
    """Takes the pages of a read-only `np.memmap` out of the process's memory; they stay in the page cache.

    NumPy keeps the map as `_mmap`. Only a map opened with mode "r" is touched: in a private one ("c") changes
    would be lost.
    """
    if getattr(array, "mode", "") == "r" and getattr(array, "_mmap", None) is not None:
        array._mmap.madvise(mmap.MADV_DONTNEED)


def dataset_parts(dataset: Any) -> list[Any]:
    """A tf.data pipeline and all the datasets it reads from, nearest first."""
    parts: list[Any] = []
    todo = [dataset]
    while todo:
        part = todo.pop()
        if not any(part is other for other in parts):
            parts.append(part)
            todo += inputs_of(part)
    return parts


def ops_of_functions(part: Any) -> Iterator[Any]:
    """The nodes of the functions that one stage of a tf.data pipeline calls, and of those that they call."""
    for wrapper in part._functions():
        graph = wrapper.function.graph.as_graph_def()
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def


def shuffle_seeds(part: Any) -> tuple[int, int] | None:
    """Both seeds of a stage that shuffles or draws at random, zeros for none; None for any other stage."""
    if type(part).__name__ not in ("_ShuffleDataset", "_RandomDataset"):
        return None
    return int(part._seed), int(part._seed2)


def stage_of(part: Any) -> str:
    """Names a stage of a tf.data pipeline as its user does; TensorFlow's own name for rarer ones."""
    names = {
        "_OptionsDataset": "with_options",
        "_ParallelBatchDataset": "batch",
        "_ParallelMapDataset": "map",
    }
    name = type(part).__name__
    return names.get(name) or name.strip("_").removesuffix("V2").removesuffix("Dataset").lower()


def make_stage(part: Any, dataset: Any) -> Any:
    """Makes a stage that passes elements on as they are once more, on top of another dataset."""
    stage = stage_of(part)
    if stage == "with_options":
        return dataset.with_options(part.options())
    return getattr(dataset, stage)(int(part._buffer_size if stage == "prefetch" else part._count))


def function_of_map(part: Any) -> tuple[Any, dict[str, Any]]:
    """The Python function of a `map`, and the other arguments of the method."""
    wrapper = traced_map(part)
    return wrapper._func, {"num_parallel_calls": parallel_calls(part)}


def traced_map(part: Any) -> Any:
    """TensorFlow's wrapper around a stage's function, with its Python function and its graph; None for none."""
    return getattr(part, "_map_func", None)


def drops_remainder(part: Any) -> bool:
    """Whether a `batch` drops a smaller last one."""
    return bool(part._drop_remainder)


def reshuffles(part: Any) -> bool:
    """Says whether a stage gives another order in every pass."""
    return shuffle_seeds(part) is not None and getattr(part, "_reshuffle_each_iteration", True) is not False


def is_cache(part: Any) -> bool:
    """Says whether a stage is `cache()`."""
    return type(part).__name__ == "CacheDataset"


def is_parallel(part: Any) -> bool:
    """Says whether a stage calls its function in several threads."""
    return parallel_calls(part) is not None


def parallel_calls(part: Any) -> int | None:
    """How many threads of a stage call its function; None where none does, -1 where TensorFlow chooses."""
    calls = getattr(part, "_num_parallel_calls", None)
    return None if calls is None else int(calls)


def is_from_service(part: Any) -> bool:
    """Whether a part of a pipeline is read from tf.data service."""
    return type(part).__name__.startswith("_DataServiceDataset")


def is_out_of_order(part: Any) -> bool:
    """Says whether a stage was allowed to give elements as they become ready."""
    if type(part).__name__ != "_ParallelInterleaveDataset":
        return getattr(part, "_deterministic", "default") == "false"
    # This stage keeps it only in TensorFlow's graph; its sources are file names as a rule, and so small.
    nodes = [node for node in dataset_graph(part).node if node.op.startswith("ParallelInterleave")]
    return any(node.attr["deterministic"].s == b"false" for node in nodes)


def caches_in_file(part: Any) -> bool:
    """Says whether a stage is `cache(file)`: a pass that is not finished would leave half of it."""
    return is_cache(part) and bool(part._filename.numpy())


def one_pass(dataset: Any) -> Any:
    """Returns the dataset without the `repeat` and `prefetch` at its end."""
    while stage_of(dataset) in ("repeat", "prefetch"):
        (dataset,) = inputs_of(dataset)
    return dataset


def with_own_order(dataset: Any) -> Any:
    """Returns a copy of a pipeline whose shuffles begin anew; reading it does not move the original's order."""
    import tensorflow as tf
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    graph = dataset_graph(dataset)
    for number, node in enumerate([node for node in graph.node if node.op == "ShuffleDatasetV3"]):
        fresh = graph.node.add(op="DummySeedGenerator", name=f"memfit_own_order_{number}")
        node.input[4] = fresh.name
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return _VariantDataset(variant, dataset.element_spec)
