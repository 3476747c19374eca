"""Canaries of what memfit uses of tf.data beside its public face."""

import numpy as np
import psutil
import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import tf_datasets, tf_runtime


@canary("tf_datasets.RANDOM_OPS", "RandomUniform", of="tensorflow")
def test_ops_that_draw_random_numbers_are_tensorflows_and_are_in_a_map_that_draws():
    assert set(dir(tf.raw_ops)) >= tf_datasets.RANDOM_OPS
    drawing = tf.data.Dataset.range(1).map(lambda _: tf.random.uniform([]))
    assert {node.op for node in tf_datasets.ops_of_functions(drawing)} & tf_datasets.RANDOM_OPS


@canary("tf_datasets.PYTHON_OPS", "PyFunc", "EagerPyFunc", "PyFuncStateless", of="tensorflow")
@pytest.mark.parametrize("stateful", [True, False])
def test_ops_that_call_python_are_in_a_map_that_calls_it(stateful):
    assert set(dir(tf.raw_ops)) >= tf_datasets.PYTHON_OPS
    for function in (tf.numpy_function, tf.py_function):
        options = {"stateful": stateful} if function is tf.numpy_function else {}
        calling = tf.data.Dataset.range(1).map(lambda x, f=function, o=options: f(abs, [x], tf.int64, **o))
        assert {node.op for node in tf_datasets.ops_of_functions(calling)} & tf_datasets.PYTHON_OPS


@canary("tf_datasets.dataset_batch_size", "BatchDataset._batch_size", of="tensorflow")
def test_the_batch_size_is_that_of_the_last_batch():
    dataset = tf.data.Dataset.range(10).batch(4).map(lambda x: x + 1).prefetch(1)
    assert tf_datasets.dataset_batch_size(dataset) == 4
    assert tf_datasets.dataset_batch_size(tf.data.Dataset.range(10)) is None


@canary("tf_datasets.note_batch_size", "BatchDataset._batch_size", of="tensorflow")
def test_a_noted_batch_size_is_found_behind_later_stages():
    dataset = tf.data.Dataset.range(1).flat_map(lambda _: tf.data.Dataset.range(10).batch(4))
    assert tf_datasets.dataset_batch_size(dataset) is None
    tf_datasets.note_batch_size(dataset, 4)
    assert tf_datasets.dataset_batch_size(dataset.map(lambda x: x + 1).prefetch(1)) == 4


@canary("tf_datasets.dataset_graph", "Dataset._variant_tensor", of="tensorflow")
def test_the_graph_of_a_pipeline_has_its_stages():
    graph = tf_datasets.dataset_graph(tf.data.Dataset.range(10).batch(4))
    assert {"RangeDataset", "BatchDatasetV2"} <= {node.op for node in graph.node}


@canary("tf_datasets.source_tensors", "TensorSliceDataset._tensors", of="tensorflow")
def test_the_tensors_of_sources_are_found():
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(3)).batch(2)
    assert [tensor.numpy().tolist() for tensor in tf_datasets.source_tensors(dataset)] == [[0, 1, 2]]


@canary("tf_datasets.inputs_of", "Dataset._inputs", of="tensorflow")
def test_the_datasets_that_one_reads_from_are_its_inputs():
    parts = (tf.data.Dataset.range(1), tf.data.Dataset.range(2))
    assert tf_datasets.inputs_of(tf.data.Dataset.zip(parts)) == list(parts)


@canary("tf_datasets.dataset_parts", "Dataset._inputs", of="tensorflow")
def test_all_parts_of_a_pipeline_are_found_once():
    source = tf.data.Dataset.range(1)
    parts = tf_datasets.dataset_parts(tf.data.Dataset.zip(source, source).batch(2))
    assert len(parts) == 3
    assert parts[-1] is source


@canary("tf_datasets.is_device_copy", "_CopyToDeviceDataset", "_MapOnGpuDataset", of="tensorflow")
def test_a_copy_to_a_device_is_known():
    source = tf.data.Dataset.range(1)
    copied = source.apply(tf.data.experimental.copy_to_device("/cpu:0"))
    assert any(tf_datasets.is_device_copy(part) for part in tf_datasets.dataset_parts(copied))
    assert not tf_datasets.is_device_copy(source)
    from tensorflow.python.data.experimental.ops import prefetching_ops

    assert hasattr(prefetching_ops, "_MapOnGpuDataset")  # made on a machine with a GPU only


@canary("tf_datasets.idle_conversions", "MapDataset._map_func", "Operation.traceback", of="tensorflow")
def test_a_conversion_that_changes_nothing_is_found():
    def convert(x):
        return tf.image.convert_image_dtype(x, tf.float32)

    floats, bytes_ = (tf.data.Dataset.from_tensors(np.ones((2, 2, 3), kind)) for kind in ("float32", "uint8"))
    assert len(tf_datasets.idle_conversions(floats.map(convert))) == 1
    assert not tf_datasets.idle_conversions(bytes_.map(convert))


@canary("tf_datasets.let_go_of_pages", "memmap._mmap", of="numpy")
def test_pages_of_a_map_leave_the_memory(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(2**23))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    process = psutil.Process()
    array.sum()
    before = process.memory_info().rss
    tf_datasets.let_go_of_pages(array)
    assert before - process.memory_info().rss > 2**25


@canary("tf_datasets.ops_of_functions", "Dataset._functions", of="tensorflow")
def test_the_ops_of_a_stages_functions_are_listed():
    dataset = tf.data.Dataset.range(3).map(lambda x: tf.random.uniform([]) + tf.cast(x, tf.float32))
    assert "RandomUniform" in {node.op for node in tf_datasets.ops_of_functions(dataset)}


@canary(
    "tf_datasets.shuffle_seeds",
    "_ShuffleDataset._seed",
    "_ShuffleDataset._seed2",
    "_RandomDataset",
    of="tensorflow",
)
def test_the_seeds_of_stages_that_draw_are_read():
    source = tf.data.Dataset.range(9)
    assert tf_datasets.shuffle_seeds(source) is None
    if tf_runtime.global_seed() is None:  # other tests of this process may have set it
        assert tf_datasets.shuffle_seeds(source.shuffle(3)) == (0, 0)
    assert tf_datasets.shuffle_seeds(source.shuffle(3, seed=4))[1] == 4
    assert tf_datasets.shuffle_seeds(tf.data.Dataset.random(seed=4))[1] == 4


@canary("tf_datasets.reshuffles", "_ShuffleDataset._reshuffle_each_iteration", of="tensorflow")
def test_a_shuffle_says_whether_it_gives_another_order():
    source = tf.data.Dataset.range(9)
    shuffled = [source.shuffle(3), source.shuffle(3, reshuffle_each_iteration=False), source]
    assert [tf_datasets.reshuffles(dataset) for dataset in shuffled] == [True, False, False]


@canary("tf_datasets.is_cache", "CacheDataset", of="tensorflow")
def test_a_cache_is_known():
    source = tf.data.Dataset.range(9)
    assert [tf_datasets.is_cache(part) for part in (source.cache(), source)] == [True, False]


@canary("tf_datasets.is_parallel", "_ParallelMapDataset._num_parallel_calls", of="tensorflow")
def test_a_parallel_stage_is_known():
    source = tf.data.Dataset.range(9)
    parts = (source.map(abs, num_parallel_calls=2), source.map(abs))
    assert [tf_datasets.is_parallel(part) for part in parts] == [True, False]


@canary("tf_datasets.parallel_calls", "_ParallelMapDataset._num_parallel_calls", of="tensorflow")
def test_the_threads_of_a_stage_are_known():
    source = tf.data.Dataset.range(9)
    parts = (source.map(abs, num_parallel_calls=2), source.map(abs, num_parallel_calls=-1), source.map(abs))
    assert [tf_datasets.parallel_calls(part) for part in parts] == [2, -1, None]


@canary(
    "tf_datasets.stage_of",
    *(f"_{name}Dataset" for name in ("Options", "ParallelBatch", "ParallelMap", "Batch", "Map", "Prefetch")),
    *(f"_{name}Dataset" for name in ("Repeat", "Skip", "Take")),
    of="tensorflow",
)
def test_stages_have_the_names_of_their_methods():
    source = tf.data.Dataset.range(9)
    stages = {
        "batch": [source.batch(2), source.batch(2, num_parallel_calls=2)],
        "map": [source.map(abs), source.map(abs, num_parallel_calls=2)],
        "prefetch": [source.prefetch(1)],
        "repeat": [source.repeat()],
        "skip": [source.skip(1)],
        "take": [source.take(1)],
        "with_options": [source.with_options(tf.data.Options())],
        "filter": [source.filter(lambda number: number > 3)],
    }
    found = {name: {tf_datasets.stage_of(part) for part in parts} for name, parts in stages.items()}
    assert found == {name: {name} for name in stages}


@canary(
    "tf_datasets.make_stage",
    "_PrefetchDataset._buffer_size",
    *(f"_{name}Dataset._count" for name in ("Repeat", "Skip", "Take")),
    of="tensorflow",
)
def test_a_stage_is_made_again_on_top_of_another_dataset():
    source, other = tf.data.Dataset.range(9), tf.data.Dataset.range(100, 104)
    options = tf.data.Options()
    options.deterministic = False
    stages = [
        source.prefetch(3),
        source.repeat(2),
        source.skip(1),
        source.take(2),
        source.with_options(options),
    ]
    made = [tf_datasets.make_stage(stage, other) for stage in stages]
    assert [len(list(each)) for each in made] == [4, 8, 3, 2, 4]
    assert made[-1].options().deterministic is False


@canary("tf_datasets.traced_map", "_MapDataset._map_func", of="tensorflow")
def test_the_wrapper_of_a_function_is_found():
    source = tf.data.Dataset.range(9)
    assert tf_datasets.traced_map(source) is None
    assert tf_datasets.traced_map(source.map(abs)).function is not None


@canary("tf_datasets.function_of_map", "StructuredFunctionWrapper._func", of="tensorflow")
def test_the_function_of_a_map_is_the_users_own():
    source = tf.data.Dataset.range(9)
    assert tf_datasets.function_of_map(source.map(abs)) == (abs, {"num_parallel_calls": None})
    assert tf_datasets.function_of_map(source.map(abs, num_parallel_calls=2))[1] == {"num_parallel_calls": 2}


@canary("tf_datasets.drops_remainder", "_BatchDataset._drop_remainder", of="tensorflow")
def test_a_batch_says_whether_it_drops_the_last():
    source = tf.data.Dataset.range(9)
    parts = (source.batch(2), source.batch(2, drop_remainder=True, num_parallel_calls=2))
    assert [tf_datasets.drops_remainder(part) for part in parts] == [False, True]


@pytest.mark.parametrize("deterministic", [True, False])
@canary(
    "tf_datasets.is_out_of_order",
    "_ParallelMapDataset._deterministic",
    "_ParallelInterleaveDataset",
    of="tensorflow",
)
def test_a_stage_that_may_give_elements_out_of_order_is_known(deterministic):
    source, options = tf.data.Dataset.range(9), {"num_parallel_calls": 2, "deterministic": deterministic}
    stages = (source.map(abs, **options), source.interleave(tf.data.Dataset.range, **options))
    assert all(tf_datasets.is_out_of_order(stage) != deterministic for stage in stages)


@canary("tf_datasets.MOVING_OPS", "AssignAddVariableOp", of="tensorflow")
def test_ops_that_move_a_variable_on_are_in_a_map_that_does():
    variable = tf.Variable(0)
    moving = tf.data.Dataset.range(1).map(lambda x: variable.assign_add(1))
    assert {node.op for node in tf_datasets.ops_of_functions(moving)} & tf_datasets.MOVING_OPS


@canary("tf_datasets.caches_in_file", "CacheDataset._filename", of="tensorflow")
def test_a_cache_in_a_file_is_told_from_one_in_memory(tmp_path):
    dataset = tf.data.Dataset.range(3)
    assert tf_datasets.caches_in_file(dataset.cache(str(tmp_path / "cache")))
    assert not tf_datasets.caches_in_file(dataset.cache())


@canary("tf_datasets.one_pass", "_RepeatDataset", "_PrefetchDataset", of="tensorflow")
def test_one_pass_is_without_the_repetition_at_the_end():
    dataset = tf.data.Dataset.range(3).batch(2)
    assert tf_datasets.one_pass(dataset.repeat().prefetch(2)) is dataset


@canary(
    "tf_datasets.with_own_order", "_VariantDataset", "ShuffleDatasetV3", "DummySeedGenerator", of="tensorflow"
)
def test_a_copy_shuffles_as_the_original_would_and_leaves_its_order_alone():
    def shuffled():
        return tf.data.Dataset.range(20).shuffle(20, seed=3).batch(5)

    untouched, looked_at = shuffled(), shuffled()
    copy = tf_datasets.with_own_order(looked_at)
    seen = [list(map(np.ndarray.tolist, each.as_numpy_iterator())) for each in (copy, looked_at, untouched)]
    assert seen[0] == seen[1] == seen[2]


@canary("tf_datasets.is_from_service", "_DataServiceDatasetV2", of="tensorflow")
def test_data_from_a_service_is_recognised() -> None:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    read = tf.data.Dataset.range(4).apply(service.distribute("distributed_epoch", dispatcher.target))
    parts = [tf_datasets.is_from_service(part) for part in tf_datasets.dataset_parts(read.batch(2))]
    assert parts.count(True) >= 1
    assert not any(
        map(tf_datasets.is_from_service, tf_datasets.dataset_parts(tf.data.Dataset.range(3).batch(2)))
    )
