"""Canaries of what memfit uses of TensorFlow's graphs beside its public face."""

import gc
import traceback
import weakref
from collections.abc import Iterator

import keras
import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import tf_graphs


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    graph = tf.Graph()
    with graph.as_default():
        yield graph


@canary("tf_graphs.forget_gradients_of_dead_graphs", "ops.gradient_registry._registry", of="tensorflow")
def test_graphs_of_deleted_functions_are_let_go():
    @tf.custom_gradient
    def double(x):
        return 2 * x, lambda dy: 2 * dy + 0 * x

    function = tf.function(lambda x: tf.gradients(double(x), x)[0])
    graph = weakref.ref(function.get_concrete_function(tf.TensorSpec([])).graph)
    tf_graphs.forget_gradients_of_dead_graphs()
    assert float(function(tf.constant(1.0))) == 2.0
    del function
    gc.collect()
    tf_graphs.forget_gradients_of_dead_graphs()
    gc.collect()
    assert graph() is None


def test_graphs_with_loops_are_let_go():
    @tf.custom_gradient
    def double(x):
        return 2 * x, lambda dy: 2 * dy + 0 * x

    def add_up(x):
        return tf.while_loop(
            lambda i, _: i < 3, lambda i, total: (i + 1, total + tf.gradients(double(x), x)[0]), (0, 0.0)
        )[1]

    function = tf.function(add_up)
    graph = weakref.ref(function.get_concrete_function(tf.TensorSpec([])).graph)
    tf_graphs.forget_gradients_of_dead_graphs()
    assert graph() is not None
    assert float(function(tf.constant(1.0))) == 6.0
    del function
    tf_graphs.forget_gradients_of_dead_graphs()
    assert graph() is None


@canary("tf_graphs.has_each_row_once", "embedding_lookup_sparse's op Unique", of="tensorflow")
def test_rows_of_a_product_with_a_sparse_matrix_are_known_from_rows_of_an_embedding():
    table, found = tf.Variable(tf.ones([4, 2])), []

    @tf.function
    def step(sparse):
        for looked_up in (
            lambda: keras.ops.matmul(sparse, table),
            lambda: tf.gather(table, tf.cast(sparse.values, tf.int32)),
        ):
            with tf.GradientTape() as tape:
                value = looked_up()
            found.append(tf_graphs.has_each_row_once(tape.gradient(value, table)))

    step(tf.sparse.from_dense([[1.0, 0.0, 2.0, 0.0], [1.0, 0.0, 0.0, 1.0]]))
    assert found == [True, False]


@canary("tf_graphs.make_variable", "resource_variable_ops.ResourceVariable", of="tensorflow")
def test_a_function_that_makes_a_variable_is_traced_once():
    made, traces = [], []

    def count(x):
        traces.append(x)
        if not made:
            with tf.init_scope():
                made.append(tf_graphs.make_variable(tf.zeros([0])))
        made[0].assign(x, read_value=False)

    function = tf.function(count, autograph=False).get_concrete_function(tf.TensorSpec([None]))
    function(tf.constant([1.0, 2.0]))
    assert len(traces) == 1
    assert made[0].numpy().tolist() == [1.0, 2.0]


@canary("tf_graphs.known_lengths", "tensor_util.constant_value_as_shape", of="tensorflow")
def test_a_graph_knows_parts_of_a_shape(graph):
    x = tf.compat.v1.placeholder(tf.float32, [None, 3])
    assert tf_graphs.known_lengths(tf.shape(x)) == [None, 3]
    assert tf_graphs.known_lengths([tf.shape(x)[0], 5]) == [None, 5]
    assert tf_graphs.known_lengths(tf.compat.v1.placeholder(tf.int32)) is None


@canary("tf_graphs.gradients", "gradients_util._GradientsHelper", of="tensorflow")
def test_gradients_of_another_graph_are_built_in_the_current_one(graph):
    x = tf.compat.v1.placeholder(tf.float32, [], "x")
    y = x * 3.0
    inner = tf.__internal__.FuncGraph("inner")
    with inner.as_default():
        (dx,) = tf_graphs.gradients([y], [tf.constant(1.0)], [x], graph)
    assert dx.graph is inner


@canary("tf_graphs.forward_op_of", "Operation._original_op", of="tensorflow")
def test_the_gradient_of_an_op_knows_it(graph):
    x = tf.compat.v1.placeholder(tf.float32, [])
    y = tf.tanh(x)
    (dx,) = tf.gradients(y, x)
    assert tf_graphs.forward_op_of(dx.op) is y.op
    assert tf_graphs.forward_op_of(y.op) is None


@canary("tf_graphs.belong_to", "Operation._original_op", of="tensorflow")
def test_an_op_counts_as_the_gradient_of_another(graph):
    forward, op = tf.constant(1.0).op, tf.constant(2.0).op
    tf_graphs.belong_to(op, forward)
    assert tf_graphs.forward_op_of(op) is forward


@canary("tf_graphs.belong_together", "Operation._original_op", of="tensorflow")
def test_an_op_counts_as_made_with_another(graph):
    forward, op, other = (tf.constant(float(value)).op for value in range(3))
    tf_graphs.belong_to(other, forward)
    tf_graphs.belong_together(op, other)
    assert tf_graphs.forward_op_of(op) is forward


@canary("tf_graphs.set_input", "Operation._update_input", of="tensorflow")
def test_an_op_reads_another_tensor(graph):
    total = tf.constant(1.0) + tf.constant(2.0)
    tf_graphs.set_input(total.op, 1, tf.constant(5.0))
    with tf.compat.v1.Session() as session:
        assert session.run(total) == 6.0


@canary("tf_graphs.redirect_readers", "Operation._update_input", of="tensorflow")
def test_all_readers_of_a_tensor_read_another(graph):
    old = tf.constant(1.0)
    total = old + old
    tf_graphs.redirect_readers(old, tf.constant(5.0))
    with tf.compat.v1.Session() as session:
        assert session.run(total) == 10.0


@canary("tf_graphs.clone", "Graph._create_op_internal", of="tensorflow")
def test_an_op_is_copied_in_its_graph_with_other_inputs(graph):
    total = tf.constant(1.0) + tf.constant(2.0)
    copy = tf_graphs.clone(total.op, [tf.constant(3.0), total.op.inputs[1]])
    assert copy.graph is graph
    with tf.compat.v1.Session() as session:
        assert session.run(copy.outputs[0]) == 5.0


@canary("tf_graphs.same_op", "Graph._create_op_internal", of="tensorflow")
def test_an_op_is_copied_into_another_graph(graph):
    total = tf.constant(1.0) + tf.constant(2.0)
    with tf.Graph().as_default() as other:
        copy = tf_graphs.same_op(total.op, [tf.constant(3.0), tf.constant(4.0)])
        assert copy.graph is other
        with tf.compat.v1.Session() as session:
            assert session.run(copy.outputs[0]) == 7.0


@canary("tf_graphs.run_after", "Operation._add_control_input", of="tensorflow")
def test_an_op_waits_for_another(graph):
    first, second = tf.constant(1.0).op, tf.constant(2.0).op
    tf_graphs.run_after(second, first)
    assert list(second.control_inputs) == [first]


@canary("tf_graphs.compiles_with_xla", "control_flow_util.GraphOrParentsInXlaContext", of="tensorflow")
@pytest.mark.parametrize("xla", [True, False])
def test_a_graph_that_xla_compiles_is_known(xla):
    seen = []

    @tf.function(jit_compile=xla)
    def step():
        seen.append(tf_graphs.compiles_with_xla(tf.compat.v1.get_default_graph()))

    step.get_concrete_function()
    assert seen == [xla]


@canary("tf_graphs.materialised", "gen_xla_ops.xla_optimization_barrier", of="tensorflow")
def test_xla_reads_a_materialised_tensor():
    step = tf.function(lambda x: tf_graphs.materialised(x + 1.0) * 2.0, jit_compile=True)
    assert float(step(tf.constant(1.0))) == 4.0


@canary("tf_graphs.together", "gen_xla_ops.xla_optimization_barrier", of="tensorflow")
def test_xla_reads_tensors_together():
    step = tf.function(lambda x: sum(tf_graphs.together([x, x + 1.0])), jit_compile=True)
    assert float(step(tf.constant(1.0))) == 3.0
    assert "opt-barrier" in step.experimental_get_compiler_ir(tf.constant(1.0))(stage="hlo")


@canary("tf_graphs.take_slice", "gen_xla_ops.xla_dynamic_slice", of="tensorflow")
def test_xla_takes_rows_of_a_tensor():
    step = tf.function(lambda x, begin: tf_graphs.take_slice(x, begin, 2), jit_compile=True)
    rows = [step(tf.range(4), tf.constant(begin)).numpy().tolist() for begin in (1, 3)]
    assert rows == [[1, 2], [2, 3]]


@canary("tf_graphs.put_slice", "gen_xla_ops.xla_dynamic_update_slice", of="tensorflow")
def test_xla_puts_rows_into_a_tensor():
    step = tf.function(lambda x, rows, begin: tf_graphs.put_slice(x, rows, begin), jit_compile=True)
    assert step(tf.range(4), tf.constant([8, 9]), tf.constant(1)).numpy().tolist() == [0, 8, 9, 3]


@canary("tf_graphs.is_concrete_function", "ConcreteFunction", of="tensorflow")
def test_a_traced_function_is_known():
    function = tf.function(lambda: tf.constant(1.0))
    assert tf_graphs.is_concrete_function(function.get_concrete_function())
    assert not tf_graphs.is_concrete_function(function)


@canary("tf_graphs.is_eager_tensor", "EagerTensor", of="tensorflow")
def test_a_tensor_with_a_value_is_known():
    assert tf_graphs.is_eager_tensor(tf.constant(1.0))
    with tf.Graph().as_default():
        assert not tf_graphs.is_eager_tensor(tf.constant(1.0))


@canary(
    "tf_graphs.tables_that_keep", "ops.gradient_registry._registry", "script_ops._py_funcs", of="tensorflow"
)
def test_tables_that_keep_what_was_traced_grow_with_it():
    before = {name: len(table) for name, table in tf_graphs.tables_that_keep().items()}

    @tf.custom_gradient
    def double(x):
        return 2 * x, lambda dy: 2 * dy

    function = tf.function(lambda x: tf.py_function(lambda y: y, [double(x)], tf.float32))
    function(tf.constant(1.0))
    after = {name: len(table) for name, table in tf_graphs.tables_that_keep().items()}
    assert len(after) == 2
    assert all(after[name] > before[name] for name in after)


@canary("tf_graphs.is_traced_function", "polymorphic_function.Function", of="tensorflow")
def test_a_traced_function_is_known_and_counts_its_traces():
    function = tf.function(lambda x: x)
    assert tf_graphs.is_traced_function(function)
    assert function.experimental_get_tracing_count() == 0
    assert not tf_graphs.is_traced_function(len)


@canary("tf_graphs.traces_functions", "tracing_compilation._create_concrete_function", of="tensorflow")
def test_the_code_that_traces_is_on_the_stack_while_a_function_is_traced_and_not_while_it_runs():
    codes = []

    def look():
        codes.append([frame.f_code for frame, _ in traceback.walk_stack(None)])

    def traced(x):
        look()
        return tf.py_function(lambda y: look() or y, [x], tf.float32)

    tf.function(traced)(tf.constant(1.0))
    assert [any(map(tf_graphs.traces_functions, each)) for each in codes] == [True, False]
