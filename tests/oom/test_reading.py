import json
import time
from pathlib import Path

import pytest
import tensorflow as tf

from memfit import InvalidInput, ProcessDied, explain
from memfit.oom.reading import ran_out_of_memory
from memfit.oom.request import layer_of
from memfit.sizes import Size

_TEXTS = Path(__file__).parent / "oom_texts"
_MIB = 2**20
# file: what ran out, cause, device, layer, phase, bytes asked for
_CASES: dict[str, tuple[str, str, str, str, str, float | None]] = {
    "arena_backward_tf2.21": ("device", "device", "arena", "stage3_conv", "backward", 18 * _MIB),
    "arena_data_tf2.21": ("device", "batch", "arena", "", "data", 1536000000),
    "arena_eager_tf2.21": ("device", "device", "arena", "of class Conv2D", "forward", 64 * _MIB),
    "arena_forward_tf2.21": ("device", "device", "arena", "stage4_conv", "forward", 64 * _MIB),
    "arena_fragmentation_tf2.21": ("block", "block", "arena", "", "", 50 * _MIB),
    "arena_update_tf2.21": ("device", "device", "arena", "", "update", 2048 * 6000 * 4),
    "arena_validation_tf2.21": ("block", "block", "arena", "stage0_conv", "validation", 128 * _MIB),
    "arena_whole_array_tf2.21": ("device", "too large", "arena", "", "", 375 * _MIB),
    "arena_xla_tf2.21": ("device", "xla", "arena", "", "step", 878895360),
    "crash_segfault": ("unknown", "segfault", "", "", "", None),
    "gpu_async_allocator_tf2.18": ("device", "device", "GPU:0", "", "", 3 * 2**30),
    "gpu_autotuning_tf2.16": ("device", "autotuning", "", "conv2d", "forward", 822083584),
    "gpu_bfc_forward_tf2.1": ("device", "device", "GPU:0", "conv2d_1", "forward", 411041792),
    "gpu_bfc_fragmented_tf2.4": ("block", "block", "GPU:1", "block2_conv1", "backward", 2**30),
    "gpu_copy_tf2.6": ("device", "copy", "", "", "", None),
    "gpu_cublas_handle_tf2.3": ("device", "handle", "", "", "", None),
    "gpu_cudnn_handle_tf2.0": ("device", "handle", "", "", "", None),
    "gpu_cudnn_start_tf2.14": ("device", "handle", "", "", "", None),
    "gpu_eager_plain_tf2.7": ("device", "exhausted", "", "", "", None),
    "gpu_eager_tf2.8": ("device", "device", "GPU:0", "block1_conv1", "forward", 128 * 64 * 224 * 224 * 4),
    "gpu_growth_refused_tf2.10": ("device", "others", "GPU:0", "conv2d", "forward", 512 * _MIB),
    "gpu_others_tf2.17": ("device", "others", "", "", "", 9996009472),
    "gpu_others_tf2.3": ("device", "others", "", "", "", 963395584),
    "gpu_update_tf2.6": ("device", "device", "GPU:0", "", "update", 30522 * 1024 * 4),
    "gpu_validation_tf2.9": ("device", "device", "GPU:0", "dense", "validation", 512 * 65536 * 2),
    "gpu_workspace_warning_tf2.2": ("nothing", "warning", "", "", "", int(2.2 * 2**30)),
    "gpu_xla_ordinal_tf2.17": ("device", "xla", "", "", "step", 2**31),
    "gpu_xla_tf2.15": ("device", "xla", "GPU:0", "", "step", 5637144576),
    "host_array_numpy": ("host", "array", "host", "", "", int(33.6 * 2**30)),
    "host_colab": ("host", "killed", "host", "", "", None),
    "host_cpu_training_tf2.12": ("host", "device", "host", "dense_2", "backward", 100000 * 50000 * 4),
    "host_exit_137": ("host", "killed", "host", "", "", None),
    "host_killed_after_warning_tf2.11": ("host", "killed", "host", "", "", None),
    "host_killed_shell": ("host", "killed", "host", "", "", None),
    "host_large_warning_tf2.0": ("nothing", "warning", "", "", "", 6645350400),
    "host_oom_killer_kernel": ("host", "killed", "host", "", "", None),
    "host_pinned_tf2.7": ("host", "pinned", "host", "", "", 2**30),
    "unknown_wrong_shape": ("unknown", "unknown", "", "", "", None),
}


def _read(name: str) -> str:
    return (_TEXTS / f"{name}.txt").read_text()


def test_every_text_has_its_expectation() -> None:
    assert {file.stem for file in _TEXTS.glob("*.txt")} == set(_CASES)


@pytest.mark.parametrize("name", _CASES)
def test_a_text_is_explained_in_a_few_lines(name: str) -> None:
    told = explain(_read(name))
    layer, phase = ("", "") if told.asked is None else (told.asked.layer, told.asked.phase)
    assert (told.ran_out, told.cause, told.device, layer, phase, told.requested) == _CASES[name]
    lines = repr(told).splitlines()
    assert len(lines) <= 18
    assert max(map(len, lines)) <= 110
    assert json.loads(json.dumps(told.to_json()))["ran_out"] == told.ran_out


@pytest.mark.parametrize(
    "name", [name for name, case in _CASES.items() if case[0] in ("device", "host", "block")]
)
def test_what_ran_out_comes_with_three_different_changes(name: str) -> None:
    changes = explain(_read(name)).changes
    assert len({change.do for change in changes}) == 3
    assert all(change.why and not change.effect for change in changes), (
        "no effect is predicted without a model"
    )


def test_the_figures_and_what_held_the_memory_are_the_logs_own() -> None:
    told = explain(_read("arena_forward_tf2.21"))
    assert told.limit == 300 * _MIB
    assert str(told.in_use) == "272 MiB"
    assert told.held[0].size == 256 * _MIB
    assert told.held[0].what == "4 x 64 MiB, the size asked for"
    assert sum(held.size for held in told.held) == pytest.approx(told.in_use, rel=0.001)
    assert "64 MiB asked for, 28 MiB free of 300 MiB" in repr(told)
    assert "layer stage4_conv, Relu, tensor [32, 128, 128, 32] float32, in the forward pass" in repr(told)


def test_fragmentation_is_told_by_the_largest_free_piece() -> None:
    told = explain(_read("gpu_bfc_fragmented_tf2.4"))
    assert told.largest_free == 768 * _MIB < told.requested  # type: ignore[operator]
    assert "1.50 GiB free of 7.50 GiB, 768 MiB in the largest piece" in repr(told)
    assert told.changes[0].do == "TF_GPU_ALLOCATOR=cuda_malloc_async python train.py"


def test_the_rounding_of_the_allocator_is_told_where_it_weighs() -> None:
    told = explain(_read("arena_update_tf2.21"))
    assert str(told.wasted) == "51 MiB"
    assert "51 MiB lost to the allocator's rounding" in repr(told)
    assert "rounding" not in repr(explain(_read("arena_forward_tf2.21")))


def test_xlas_own_report_says_what_a_compiled_step_holds() -> None:
    held = explain(_read("gpu_xla_tf2.15")).held
    assert [str(part.size) for part in held] == ["5.25 GiB", "820 MiB", "272 MiB"]
    assert held[0].what == "temporary buffers (activations)"


def test_the_cuda_drivers_figures_are_used_where_it_gives_them() -> None:
    assert "1.00 GiB free of 16.00 GiB" in repr(explain(_read("gpu_async_allocator_tf2.18")))
    assert "445 MiB free of 11.17 GiB" in repr(explain(_read("gpu_cudnn_start_tf2.14")))
    assert "15.00 GiB in use" in repr(explain(_read("host_oom_killer_kernel")))


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("arena_forward_tf2.21", 'memfit.fit(model, ..., memory="300MiB")'),
        ("arena_update_tf2.21", "model.compile(optimizer=keras.optimizers.Lion(), ...)"),
        ("arena_validation_tf2.21", "model.fit(..., validation_batch_size=32)"),
        ("arena_whole_array_tf2.21", "model.fit(memfit.arrays(x, y, batch_size=32), ...)"),
        ("gpu_others_tf2.3", "nvidia-smi"),
        ("gpu_cudnn_handle_tf2.0", "memfit.configure()"),
        ("host_killed_shell", "memfit lint train.py"),
    ],
)
def test_the_best_change_fits_the_cause(name: str, first: str) -> None:
    assert explain(_read(name)).changes[0].do == first


@pytest.mark.parametrize("name", _CASES)
def test_every_figure_of_a_change_is_filled_in(name: str) -> None:
    for change in explain(_read(name)).changes:
        assert not set("{}") & set(change.do + change.why)


def test_half_of_the_batch_is_taken_from_whoever_knows_it() -> None:
    assert explain(_read("arena_forward_tf2.21")).changes[2].do == "model.fit(..., batch_size=16)"
    assert (
        explain(_read("arena_forward_tf2.21"), batch_size=48).changes[2].do == "model.fit(..., batch_size=24)"
    )
    assert explain(_read("gpu_eager_plain_tf2.7")).changes[2].do == "model.fit(..., batch_size=<half of it>)"


def test_the_decisive_failure_of_several_is_the_one_that_became_the_error() -> None:
    told = explain(_read("arena_backward_tf2.21"))
    assert told.failures == 2
    assert told.requested == 18 * _MIB, "another thread failed later, asking for 36 MiB"
    assert "2 allocations failed" in repr(told)


def test_a_kill_after_a_survived_failure_is_what_ended_the_run() -> None:
    told = explain(_read("arena_forward_tf2.21") + "\nEpoch 2/3\nKilled\n")
    assert (told.ran_out, told.cause) == ("host", "killed")


def test_a_crash_after_a_failed_allocation_is_still_about_memory() -> None:
    told = explain(_read("arena_whole_array_tf2.21") + "\nSegmentation fault (core dumped)\n")
    assert (told.ran_out, told.cause) == ("device", "too large")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Epoch 1/3\nloss: 0.3\n",
        "RESOURCE_EXHAUSTED: Received message larger than max (5242880 vs. 4194304)",
        "the trial was Killed by the tuner's rule",
        "exit code 1",
        "\x00\x01\x02",
    ],
)
def test_an_unknown_text_is_said_to_be_unknown(text: str) -> None:
    told = explain(text)
    assert (told.ran_out, told.changes) == ("unknown", ())
    assert "does not recognise an out-of-memory error" in repr(told)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory",
            "others",
        ),
        ("Blas GEMM launch failed : a.shape=(32, 784), b.shape=(784, 512)", "handle"),
        (
            "OOM when allocating tensor of shape [8,8] and type float\n\t [[{{node training/Adam/zeros}}]]",
            "device",
        ),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.", "xla"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup.", "killed"),
        ("Command terminated, exit status: 139", "segfault"),
    ],
)
def test_single_lines_are_enough(text: str, cause: str) -> None:
    assert explain(text).cause == cause


def test_exceptions_are_explained_as_their_texts_are() -> None:
    assert explain(MemoryError()).ran_out == "host"
    assert explain(ProcessDied(-9)).cause == "killed"
    assert explain(ProcessDied(-11)).cause == "segfault"
    assert explain(ProcessDied(-15)).ran_out == "unknown", "SIGTERM is no sign of memory"
    assert explain(KeyError("x")).ran_out == "unknown"


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8]"), True),
        (
            tf.errors.InternalError(None, None, "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"),
            True,
        ),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (MemoryError(), True),
        (tf.errors.InternalError(None, None, "the queue is closed"), False),
        (ValueError("CUDA_ERROR_OUT_OF_MEMORY is what I was told"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_about_memory_is_told_by_its_type_or_text(error: Exception, ran_out: bool) -> None:
    assert ran_out_of_memory(error) is ran_out


def test_layers_of_this_process_are_named_as_keras_3_names_them() -> None:
    text = (
        "OOM when allocating tensor with shape[64,8] and type float on /device:CPU:0 by allocator "
        "bfc_cpu_allocator_for_gpu [[{{node net_1/batch_normalization_1_2/moments/SquaredDifference}}]]"
    )
    asked = explain(RuntimeError(text)).asked
    assert asked is not None
    assert asked.layer == "batch_normalization_1"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="exception or a text"):
        explain(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="positive number"):
        explain("Killed", batch_size=0)


def test_the_time_grows_with_the_log_and_not_with_its_square() -> None:
    def seconds(lines: int) -> float:
        text = "I0000 00:00:1 1234 some.cc:1] an innocent line of a log with a few words\n" * lines
        begun = time.process_time()
        assert explain(text + _read("arena_forward_tf2.21")).requested == Size("64MiB")
        return time.process_time() - begun

    assert seconds(40_000) < 40 * seconds(4_000), "ten times the lines take about ten times as long"


@pytest.mark.parametrize(
    ("node", "keras_3", "layer"),
    [
        ("net_1/stage4_conv_1/Relu", True, "stage4_conv"),
        ("functional_1/conv2d_1/convolution", True, "conv2d"),
        ("functional_1/conv2d_1_2/BiasAdd", True, "conv2d_1"),
        ("functional_1/inner_block_3/c1_1_1/BiasAdd", True, "inner_block/c1_1"),
        ("gradient_tape/functional_1/batch_normalization_1/batchnorm/Rsqrt", True, "batch_normalization"),
        ("StatefulPartitionedCall/sub_1/fc_1/MatMul", True, "fc"),
        ("model_2/block1/conv2d_1/Conv2D", False, "block1/conv2d_1"),
        ("gradient_tape/sequential/conv2d_3/Conv2D/Conv2DBackpropFilter", False, "conv2d_3"),
    ],
)
def test_a_node_belongs_to_its_layer_in_keras_2_and_3(node: str, keras_3: bool, layer: str) -> None:
    assert layer_of(node, keras_3=keras_3) == layer
