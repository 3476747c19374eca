"""Real steps through the real GPU compiler; these need memfit[gpu-compiler] (make test-gpu-compiler)."""

import pytest

from memfit.estimation.estimating import estimate
from memfit.estimation.gpu_compiler.compiled import NotCompiled, cache_folder
from memfit.estimation.gpu_compiler.compiling import compile_hlo, compiler_version
from memfit.sizes import Size

try:
    compiler_version()
except NotCompiled as reason:
    pytestmark = pytest.mark.skip(reason=str(reason))

MIB = 2**20


def cnn(optimizer="adam", policy="float32", *, normalised=True):
    import keras
    from keras import layers

    keras.utils.clear_session()  # layers are counted within a process, and a step's ops are named after them
    block = []
    for _ in range(6):
        block += [
            layers.Conv2D(32, 3, padding="same", dtype=policy),
            *([layers.BatchNormalization(dtype=policy)] if normalised else []),
            layers.ReLU(dtype=policy),
        ]
    head = [layers.GlobalAveragePooling2D(dtype=policy), layers.Dense(10, activation="softmax")]
    model = keras.Sequential([keras.Input((32, 32, 3)), *block, *head])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def stock(own_cache):
    return estimate(cnn(), 64, device="A100 40GB")


def test_a_step_is_compiled_for_a_gpu_that_is_not_there(stock):
    assert stock.source.startswith("compiled for NVIDIA A100 40GB (XLA, jaxlib ")
    parts = stock.prediction.parts
    known = parts.weights + parts.optimizer + 64 * parts.sample
    # What the step gets is the variables and the batch; the rest are the loss metric and counters.
    assert 0 <= stock.prediction.figures.arguments - known < 1024
    # Every convolution's output is kept for the backward pass, 8 MiB each: no fusion can do without.
    assert stock.prediction.figures.temporaries > 6 * 64 * 32 * 32 * 32 * 4
    assert sum(stock.breakdown.values()) == stock.peak
    assert any("conv2d" in tensor.layer for tensor in stock.top())
    assert 1e-5 < stock.step_time < 1e-2


def test_a_step_that_was_compiled_before_comes_from_disk(stock):
    before = {file: file.stat().st_mtime_ns for file in cache_folder().iterdir()}
    again = estimate(cnn(), 64, device="A100 40GB")
    assert again.peak == stock.peak
    assert {file: file.stat().st_mtime_ns for file in cache_folder().iterdir()} == before


def test_rematerialised_and_micro_batched_steps_are_the_ones_compiled(stock):
    from functools import partial

    from memfit.steps.recipe import Recipe
    from memfit.steps.rematerialisation import find_choices
    from memfit.steps.train_step import build

    model = cnn()
    choices = find_choices(model, 64, compiled=True)
    segments = next(choice for choice in choices if choice.activation_bytes <= 0.5 * choice.stock_bytes)
    fewer = estimate(model, 64, device="A100 40GB", build=partial(build, recipe=Recipe(segments=segments)))
    assert fewer.prediction.figures.arguments == stock.prediction.figures.arguments
    assert fewer.prediction.figures.temporaries < 0.6 * stock.prediction.figures.temporaries
    # Two parts in a loop, a loop of one round and a shorter part after it, four parts in a loop.
    for size, most in ((32, 0.6), (40, 0.7), (16, 0.35)):
        parts = estimate(model, 64, device="A100 40GB", build=partial(in_parts, size=size))
        assert parts.prediction.figures.temporaries < most * stock.prediction.figures.temporaries


def test_a_plan_for_a_gpu_has_the_peak_that_the_compiler_gives_the_planned_step(own_cache):
    from functools import partial

    from memfit.planning.planning import plan

    model = cnn(normalised=False)
    memory = estimate(model, 64, device="A100 40GB").needed // 2
    found = plan(model, 64, memory=memory, allow="exact", device="A100 40GB")
    assert "compiled for NVIDIA A100 40GB" in found.source
    size = found.recipe.micro_batch
    assert size is not None
    build = partial(in_parts, size=size, segments=found.recipe.segments)
    planned = estimate(model, 64, device="A100 40GB", build=build)
    assert planned.needed <= memory
    # The plan had two equal parts compiled, and the other samples wait. A shorter last part takes a little more.
    equal = estimate(model, 2 * size, device="A100 40GB", build=build)
    waiting = equal.prediction.parts.sample * (64 - 2 * size)
    assert found.predicted == pytest.approx(equal.peak + waiting, rel=0.03)
    assert found.predicted == pytest.approx(planned.peak, rel=0.08)


def test_a_plan_asks_for_less_where_the_compiler_finds_more_than_was_promised(stock, monkeypatch):
    from memfit.planning import planning, recordings

    predicted, asked = recordings._predicted, []
    record = planning._record

    def note(job, recorder, recipe, batch_size):
        segments = None if recipe is None else recipe.segments
        asked.append((segments, record(job, recorder, recipe, batch_size)))
        return asked[-1][1]

    monkeypatch.setattr(planning, "_record", note)
    monkeypatch.setattr(recordings, "_predicted", lambda segments, size: 4 * predicted(segments, size))
    memory = int(0.6 * stock.needed)
    # Whole batches are normalised, so that micro-batches would not be exact.
    plan = planning.plan(cnn(), 64, memory=memory, allow="exact", device="A100 40GB")
    _, (first, promised), *others = asked
    assert promised.needed > memory
    assert 1 <= len(others) <= 3
    assert plan.recipe.segments != first


def test_a_plan_computes_convolutions_in_parts_where_segments_alone_do_not_fit(stock):
    from dataclasses import replace

    from memfit.planning.fidelity import Fidelity
    from memfit.planning.job import Job
    from memfit.planning.plan import Plan
    from memfit.planning.planning import plan
    from memfit.steps.recipe import Recipe
    from memfit.steps.rematerialisation import find_choices

    model = cnn()
    job = Job(model, 64, Size("1GiB"), Fidelity.EXACT)
    smallest = find_choices(model, 64, compiled=True)[-1]

    def needed(segments):
        build = job.build(Recipe(segments=segments))
        return estimate(model, 64, device="A100 40GB", build=build).needed

    alone, parted = needed(smallest), needed(replace(smallest, split_convolutions=True))
    assert parted < alone
    memory = (alone + parted) // 2
    found = plan(model, 64, memory=memory, allow="exact", device="A100 40GB")
    assert found.recipe.segments == replace(smallest, split_convolutions=True)
    assert found.predicted + found.margin <= memory
    assert found.time > 1
    assert "convolutions in slices" in str(found)
    assert Plan.from_json(found.to_json()) == found
    if plan(model, "max", memory=memory, allow="exact", device="A100 40GB").batch_size < 64:
        pytest.xfail("the search for the largest batch does not try convolutions in slices, and ends at 58")


def in_parts(model, size, segments=None):
    from memfit.compat import keras_layers
    from memfit.estimation.recording.keras_step import KerasStep
    from memfit.steps.micro_batches.step import micro_batched_train_step
    from memfit.steps.rematerialisation import rematerialise

    def plain(x):
        return keras_layers.forward(model, x, training=True)

    forward = plain if segments is None else rematerialise(model, segments)
    object.__setattr__(model, "train_step", micro_batched_train_step(model, size, forward))
    return KerasStep(model, "train")


def test_mixed_precision_takes_less(stock):
    lower = estimate(cnn(policy="mixed_bfloat16"), 64, device="A100 40GB")
    assert lower.prediction.figures.temporaries < 0.8 * stock.prediction.figures.temporaries


def test_a_model_that_xla_cannot_compile_is_recorded_and_the_reason_told(own_cache):
    import keras
    import tensorflow as tf
    from keras import layers

    lstm = keras.Sequential([keras.Input((8, 4)), layers.LSTM(4), layers.Dense(1)])
    lstm.compile("sgd", "mse")
    est = estimate(lstm, 8, device="A100 40GB")
    assert not est.compiled
    assert "not compiled for A100 40GB: Keras would not compile it with XLA: lstm" in est.source

    class Python(layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.py_function(lambda t: t, [x], tf.float32), (None, 4))

    python = keras.Sequential([keras.Input((4,)), layers.Dense(4), Python(), layers.Dense(1)])
    python.compile("sgd", "mse")
    est = estimate(python, 8, device="A100 40GB")
    assert not est.compiled
    assert "XLA cannot compile the step" in est.source
    assert "EagerPyFunc" in est.source


def test_a_compiler_that_takes_too_long_or_gets_nonsense_is_told_in_one_sentence():
    with pytest.raises(NotCompiled, match=r"more than 0\.5 s"):
        compile_hlo(b"", "", timeout=0.5)
    with pytest.raises(NotCompiled, match="refused"):
        compile_hlo(b"no module", "no target")


def test_a_gpu_that_the_compiler_refuses_is_recorded_and_the_nearest_named(own_cache):
    est = estimate(cnn("sgd"), 8, device="V100 16GB")
    if not est.compiled:  # jaxlib 0.10.2 has no kernels for compute capability 7.0
        assert "the nearest GPU to ask about is Tesla T4" in est.source
    else:
        assert est.source.startswith("compiled for NVIDIA Tesla V100 16GB")
