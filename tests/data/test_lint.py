"""Each rule fires on the bad pipeline and is quiet on the good one; good pipelines have no findings at all."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.data.linting.holding import held_by

DATA = tf.data.Dataset
AUTOTUNE = tf.data.AUTOTUNE


def paths(count=1000):
    return DATA.from_tensor_slices([f"{number}.jpg" for number in range(count)])


def load(path):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.cast(tf.round(tf.image.resize(image, (224, 224))), tf.uint8)


def load_float(path):
    return tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), (224, 224))


def load_any_size(path):
    return tf.io.decode_jpeg(tf.io.read_file(path), channels=3)


def by_service():
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    read = DATA.range(8).apply(service.distribute("distributed_epoch", dispatcher.target))
    return read.prefetch(1)


def flip(image):
    return tf.image.random_flip_left_right(image)


def by_python(image):
    return tf.numpy_function(np.flipud, [image], tf.uint8)


def by_python_with_shape(image):
    return tf.ensure_shape(by_python(image), (224, 224, 3))


def looks_scaled(path):
    image = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), (224, 224))
    return tf.image.convert_image_dtype(image, tf.float32)


def really_scaled(path):
    image = tf.image.convert_image_dtype(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), tf.float32)
    return tf.image.resize(image, (224, 224))


def good():
    images = paths().shuffle(1000).map(load, num_parallel_calls=AUTOTUNE)
    return images.batch(32).prefetch(AUTOTUNE)


def numbers(count=100_000):
    return DATA.from_tensor_slices(np.zeros((count, 4), np.float32))


def sharded(files, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return tf.data.TFRecordDataset([f"{n}.tfrecord" for n in range(files)]).batch(2).with_options(options)


FILE, BY_DATA = tf.data.experimental.AutoShardPolicy.FILE, tf.data.experimental.AutoShardPolicy.DATA
to_cpu = tf.data.experimental.prefetch_to_device("/cpu:0")

# Rule, a pipeline that breaks it, and its nearest neighbour that does not.
CASES = {
    "shuffle-of-images": (
        lambda: paths().map(load, AUTOTUNE).shuffle(1000).batch(32).prefetch(1),
        lambda: paths().shuffle(1000).map(load, AUTOTUNE).batch(32).prefetch(1),
    ),
    "cache-too-large": (
        lambda: paths(200_000).map(load, AUTOTUNE).cache().shuffle(100).batch(32).prefetch(1),
        lambda: paths(20_000).map(load, AUTOTUNE).cache().shuffle(100).batch(32).prefetch(1),
    ),
    "float-cache": (
        lambda: paths().map(load_float, AUTOTUNE).cache().batch(32).prefetch(1),
        lambda: paths().map(load, AUTOTUNE).cache().batch(32).prefetch(1),
    ),
    "large-prefetch": (
        lambda: paths(100_000).map(load, AUTOTUNE).batch(64).prefetch(500),
        lambda: paths(100_000).map(load, AUTOTUNE).batch(64).prefetch(4),
    ),
    "cache-before-resize": (
        lambda: (
            paths()
            .map(load_any_size, AUTOTUNE)
            .cache()
            .map(lambda x: tf.image.resize(x, (8, 8)))
            .batch(8)
            .prefetch(1)
        ),
        lambda: paths().map(load, AUTOTUNE).cache().map(lambda x: x).batch(8).prefetch(1),
    ),
    "random-before-cache": (
        lambda: paths().map(load, AUTOTUNE).map(flip).cache().batch(32).prefetch(1),
        lambda: paths().map(load, AUTOTUNE).cache().map(flip).batch(32).prefetch(1),
    ),
    "shuffle-before-cache": (
        lambda: paths().shuffle(1000).map(load, AUTOTUNE).cache().batch(32).prefetch(1),
        lambda: paths().shuffle(1000).map(load, AUTOTUNE).cache().shuffle(100).batch(32).prefetch(1),
    ),
    "cache-after-repeat": (lambda: DATA.range(10).repeat().cache(), lambda: DATA.range(10).cache().repeat()),
    "cache-cut-short": (lambda: DATA.range(10).cache().take(3), lambda: DATA.range(10).take(3).cache()),
    "repeat-before-shuffle": (
        lambda: DATA.range(10).repeat(2).shuffle(10),
        lambda: DATA.range(10).shuffle(10).repeat(2),
    ),
    "shared-cache-file": (
        lambda: DATA.range(3).cache("/nowhere/a").concatenate(DATA.range(4).cache("/nowhere/a")),
        lambda: DATA.range(3).cache("/nowhere/a").concatenate(DATA.range(4).cache("/nowhere/b")),
    ),
    "service-without-order": (by_service, lambda: DATA.range(8).prefetch(1)),
    "too-few-files": (lambda: sharded(1, FILE), lambda: sharded(1, BY_DATA)),
    "no-parallel-calls": (
        lambda: paths().map(load).batch(32).prefetch(1),
        lambda: paths().map(load, AUTOTUNE).batch(32).prefetch(1),
    ),
    "missing-prefetch": (
        lambda: paths().map(load, AUTOTUNE).batch(32),
        lambda: paths().map(load, AUTOTUNE).batch(32).prefetch(1),
    ),
    "prefetch-not-last": (
        lambda: paths().batch(1).prefetch(1).unbatch().map(load, AUTOTUNE),
        lambda: paths().batch(1).unbatch().map(load, AUTOTUNE).prefetch(1),
    ),
    "python-loses-shape": (
        lambda: good().unbatch().map(by_python).prefetch(1),
        lambda: good().unbatch().map(by_python_with_shape).prefetch(1),
    ),
    "python-serialises": (
        lambda: good().unbatch().map(by_python_with_shape, AUTOTUNE).prefetch(1),
        lambda: good().unbatch().map(by_python_with_shape).prefetch(1),
    ),
    "map-before-batch": (
        lambda: numbers().map(lambda x: x * 2.0).batch(32).prefetch(1),
        lambda: numbers().batch(32).map(lambda x: x * 2.0).prefetch(1),
    ),
    "device-prefetch-not-last": (
        lambda: good().apply(to_cpu).map(lambda x: x),
        lambda: good().map(lambda x: x).apply(to_cpu),
    ),
    "scaling-does-nothing": (
        lambda: paths().map(looks_scaled, AUTOTUNE).batch(32).prefetch(1),
        lambda: paths().map(really_scaled, AUTOTUNE).batch(32).prefetch(1),
    ),
    "scaled-twice": (
        lambda: paths().map(really_scaled, AUTOTUNE).batch(32).map(lambda x: x / 255.0).prefetch(1),
        lambda: (
            paths().map(load, AUTOTUNE).batch(32).map(lambda x: tf.cast(x, tf.float32) / 255.0).prefetch(1)
        ),
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_on_the_bad_and_is_quiet_on_the_good(rule):
    bad, fine = CASES[rule]
    findings = memfit.lint(bad(), host="16GiB")
    assert [finding.rule for finding in findings].count(rule) == 1, findings
    assert not list(memfit.lint(fine(), host="16GiB"))


def test_findings_name_the_stage_the_bytes_and_the_fix():
    (finding,) = memfit.lint(paths().map(load, AUTOTUNE).shuffle(1000).batch(32).prefetch(1), host="16GiB")
    assert finding.where == "3 shuffle"
    assert finding.stake == "144 MiB: 1,000 elements of 147.0 KiB"
    assert "ds.shuffle(n).map(load" in finding.fix


def test_a_batch_size_in_bytes_stands_in_for_unknown_shapes():
    pipeline = paths().map(load_any_size, AUTOTUNE).shuffle(100).batch(10).prefetch(1)
    (unknown,) = memfit.lint(pipeline, host="16GiB")
    assert unknown.stake == "100 elements of unknown size"
    (known,) = memfit.lint(pipeline, host="16GiB", batch_memory="360MiB")
    assert known.stake == "3.52 GiB: 100 elements of 36 MiB"


def test_an_array_of_half_a_gigabyte_is_found_without_being_copied():
    pipeline = DATA.from_tensor_slices(np.zeros((2**17, 1024), np.float32)).batch(32).prefetch(1)
    tracemalloc.start()
    (finding,) = memfit.lint(pipeline, host="16GiB")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert finding.rule == "array-in-graph"
    assert "512 MiB" in finding.stake
    assert peak < 64 * 2**20, "the graph with the array in it would be as large as the array"


def test_datasets_that_share_a_cache_file_are_found_together(tmp_path):
    train, validation = (DATA.range(n).cache(str(tmp_path / "same")) for n in (3, 4))
    findings = memfit.lint(train, validation)
    assert [(finding.rule, finding.dataset) for finding in findings] == [("shared-cache-file", 2)]


def test_a_cache_that_a_killed_process_left_is_found(tmp_path):
    file = str(tmp_path / "cache")
    next(iter(DATA.range(5).cache(file)))  # an iteration that never ends leaves TensorFlow's lock file
    Path(f"{file}_0.lockfile").touch()
    assert [finding.rule for finding in memfit.lint(DATA.range(5).cache(file))] == ["half-written-cache"]


def test_something_else_than_a_dataset_is_refused():
    with pytest.raises(memfit.InvalidInput, match=r"takes tf\.data datasets"):
        memfit.lint([1, 2])


def test_an_empty_result_says_so():
    assert repr(memfit.lint(good())) == "Nothing to change in the pipeline."
    assert memfit.lint(good()).to_json() == []


MAKING = 2 * 10 * 1024  # a batch of 10 rows while it is made: its rows, and the whole
ROWS = DATA.from_tensor_slices(np.zeros((100, 256), "float32"))


@pytest.mark.parametrize(
    ("dataset", "held"),
    [
        (ROWS.batch(10), MAKING),
        (ROWS.shuffle(50).batch(10), 50 * 1024 + MAKING),
        (ROWS.shuffle(10**6).repeat().batch(10), 100 * 1024 + MAKING),  # a buffer is not fuller than the data
        (ROWS.cache().batch(10).prefetch(3), 100 * 1024 + MAKING + 3 * 10 * 1024),
        (ROWS.cache().shuffle(50).batch(10), 100 * 1024 + MAKING),  # what a cache holds is not copied
        (ROWS.batch(10).prefetch(AUTOTUNE), MAKING + 2 * 10 * 1024),
        (ROWS.cache("file").batch(10), MAKING),
        (ROWS.map(tf.abs, num_parallel_calls=4).batch(10), 4 * 1024 + MAKING),
        (ROWS.batch(10).map(tf.abs, num_parallel_calls=4), MAKING + (4 + 2) * 10 * 1024),
        # Of 4 datasets that are read and 8 that are opened ahead, 3 elements each.
        (ROWS.interleave(DATA.from_tensors, 4, num_parallel_calls=4).batch(10), 36 * 1024 + MAKING),
        (DATA.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec(())).cache(), None),
        (DATA.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec(None)).shuffle(9), None),
    ],
)
def test_what_a_pipeline_holds_is_told_by_its_graph(dataset, held):
    assert held_by(dataset) == held
