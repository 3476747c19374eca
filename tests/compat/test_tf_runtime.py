"""Canaries of what memfit uses of TensorFlow's runtime beside its public face."""

import subprocess
import sys
from typing import Any

import keras
import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import tf_profiles, tf_runtime
from prepared import in_arena


def in_small_arena() -> dict[str, Any]:
    """Does, in a small arena, what only a process with an allocator of its own and no history can show."""
    import tempfile
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    from memfit.compat import tf_runtime

    facts: dict[str, Any] = {"initialised": [tf_runtime.is_initialised()]}
    tf.ones([1])
    facts["initialised"].append(tf_runtime.is_initialised())
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2)
        with tf.profiler.experimental.Profile(folder, options):
            tf.function(lambda: tf.random.uniform([1000]) * 2)().numpy()
        facts["profile"] = next(Path(folder).rglob("*.xplane.pb")).read_bytes()
    try:
        tf.ones([2**25]) + 1.0
    except tf.errors.ResourceExhaustedError as error:
        facts["oom"] = str(error)
    looping = tf.function(lambda: tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(np.int32(0))]))
    looping.get_concrete_function()
    with tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR"):
        try:
            facts["loop"] = [int(value) for value in looping()]
        except tf.errors.FailedPreconditionError as error:
            facts["refused"] = tf_runtime.refuses_to_run_one_by_one(error)
            facts["message"] = str(error)
    return facts


@pytest.fixture(scope="module")
def arena() -> dict[str, Any]:
    return in_arena(in_small_arena, memory="16MiB")


@canary("tf_runtime.is_initialised", "context.Context._initialized", of="tensorflow")
def test_tensorflow_is_initialised_by_its_first_op(arena):
    assert arena["initialised"] == [False, True]


def test_tensorflow_that_is_not_imported_is_not_initialised_and_stays_so():
    code = "import sys, memfit.compat.tf_runtime as r; print(r.is_initialised(), 'tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@canary("tf_runtime.place_in_time", "ResourceVariable._unique_id", of="tensorflow")
def test_variables_tell_the_order_in_which_they_were_made():
    first, second = tf.Variable(1.0, name="b_9"), tf.Variable(1.0, name="a")
    assert tf_runtime.place_in_time(first) < tf_runtime.place_in_time(second)


@canary("tf_runtime.ARENA_ALLOCATOR", "the allocator's name", of="tensorflow")
def test_the_arenas_allocator_has_its_name(arena):
    assert f"by allocator {tf_runtime.ARENA_ALLOCATOR}" in arena["oom"]


@canary(
    "tf_runtime.refuses_to_run_one_by_one", "the message of the single-threaded executor", of="tensorflow"
)
def test_a_loop_is_refused_by_the_single_threaded_executor(arena):
    assert arena["refused"], arena["message"]


@canary("tf_profiles.read_xspace", "tensorflow.tsl.profiler.protobuf.xplane_pb2", of="tensorflow")
def test_a_profile_is_read(arena):
    assert tf_profiles.read_xspace(arena["profile"]).planes


@pytest.mark.parametrize("kind", ["ALLOCATION", "DEALLOCATION"])
def test_a_profile_has_the_allocators_events(arena, kind):
    check_events(arena, getattr(tf_profiles, kind))


@canary("tf_profiles.ALLOCATION", "the profiler's MemoryAllocation", of="tensorflow")
@canary("tf_profiles.DEALLOCATION", "the profiler's MemoryDeallocation", of="tensorflow")
def check_events(arena: dict[str, Any], name: str) -> None:
    space = tf_profiles.read_xspace(arena["profile"])
    assert name in {event.name for plane in space.planes for event in plane.event_metadata.values()}


@canary("tf_profiles.ALLOCATION_FIGURES", "the figures of the profiler's MemoryAllocation", of="tensorflow")
def test_the_allocators_events_have_their_figures(arena):
    space = tf_profiles.read_xspace(arena["profile"])
    figures = {figure.name for plane in space.planes for figure in plane.stat_metadata.values()}
    assert set(tf_profiles.ALLOCATION_FIGURES) <= figures


@canary("tf_profiles.read_hlo", "tensorflow.compiler.xla.service.hlo_pb2.HloProto", of="tensorflow")
def test_an_hlo_proto_is_read():
    module = tf_profiles.read_hlo(b"")
    assert {"hlo_module", "buffer_assignment"} <= {field.name for field in module.DESCRIPTOR.fields}


@canary("tf_profiles.canonical", "hlo_pb2.HloModuleProto", of="tensorflow")
def test_the_hlo_of_equal_functions_is_equal():
    def lower() -> bytes:
        function = tf.function(lambda x: tf.tanh(x) + 1, jit_compile=True)
        return function.experimental_get_compiler_ir(tf.ones([2]))(stage="hlo_serialized")

    assert b"tanh" in tf_profiles.canonical(lower())


@canary(
    "tf_runtime.TRACKING_ATTRIBUTES", "Trackable._self_...", "Trackable._unconditional_...", of="tensorflow"
)
def test_tensorflows_tracking_is_in_attributes_that_begin_so():
    layer = keras.layers.Dense(1)
    own = set(vars(layer))
    tf.train.Checkpoint(layer=layer)
    tracking = {name for name in vars(layer) if name.startswith(tf_runtime.TRACKING_ATTRIBUTES)}
    assert tracking
    assert set(vars(layer)) - own <= tracking


@canary(
    "tf_runtime.optimise_once", "context.Context._config", "Context.function_call_options", of="tensorflow"
)
def test_functions_are_optimised_once_from_then_on(own_options):
    tf_runtime.optimise_once()
    assert "meta_optimizer_iterations: ONE" in own_options()


@pytest.fixture
def own_options():
    """Reads the options with which TensorFlow calls functions; they are put back afterwards."""
    from tensorflow.python.eager import context

    own = context.context()
    before, options = own._config, own.function_call_options

    def read() -> str:
        config = tf.compat.v1.ConfigProto()
        config.ParseFromString(own.function_call_options.config_proto_serialized)
        return str(config)

    yield read
    own._config, own.function_call_options = before, options


@canary("tf_runtime.compile_options", "Function._jit_compile", "Function._reduce_retracing", of="tensorflow")
def test_the_options_of_a_function_are_read():
    function = tf.function(lambda: 1, jit_compile=True, reduce_retracing=True)
    assert tf_runtime.compile_options(function) == {"jit_compile": True, "reduce_retracing": True}


@canary("tf_runtime.contents_of", "StaticHashTable._default_value", of="tensorflow")
def test_the_contents_of_a_table_are_read():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [7]), -1)
    keys, values, key_type, value_type, default = tf_runtime.contents_of(table)
    assert (list(keys), list(values), key_type, value_type, int(default)) == (
        [b"a"],
        [7],
        "string",
        "int32",
        -1,
    )


@canary(
    "tf_runtime.random_states",
    "global_state.get_global_attribute",
    "stateful_random_ops.global_generator",
    "Context._rng",
    of="tensorflow",
)
def test_the_states_of_random_numbers_are_read():
    keras.utils.set_random_seed(1)
    keras.random.uniform([1])
    tf.random.get_global_generator()
    assert all(state is not None for state in tf_runtime.random_states().values())


@canary(
    "tf_runtime.put_back_random_states",
    "seed_generator.global_seed_generator",
    "stateful_random_ops.get_global_generator",
    of="tensorflow",
)
def test_random_numbers_go_on_from_where_they_were():
    keras.utils.set_random_seed(1)

    def draw() -> list[float]:
        tf.random.uniform([])  # advances the seeds; its kernel, once made, keeps a state of its own
        return [float(keras.random.uniform([])), float(tf.random.get_global_generator().uniform([]))]

    draw()
    states = tf_runtime.random_states()
    drawn = draw()
    assert draw() != drawn
    tf_runtime.put_back_random_states(states)
    assert tf_runtime.random_states()["tensorflow"] == states["tensorflow"]
    assert draw() == drawn


@canary("tf_runtime.global_seed", "context.global_seed", of="tensorflow")
def test_the_global_seed_is_read():
    keras.utils.set_random_seed(12)
    assert tf_runtime.global_seed() == 12
