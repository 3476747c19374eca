"""What is made of the GPU compiler's answers: no compiler is needed for these."""

import json
import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from memfit.budgets.device_specs import all_specs, user_folder
from memfit.budgets.gpu_table import gpu
from memfit.errors import InvalidInput
from memfit.estimation.estimate import Estimate
from memfit.estimation.gpu_compiler.compiled import (
    Compiled,
    Kernel,
    Living,
    NotCompiled,
    Parts,
    cache_folder,
    least_seconds,
    load_or_compile,
)
from memfit.estimation.gpu_compiler.curve import Curve
from memfit.estimation.gpu_compiler.lowering import lower_here
from memfit.estimation.gpu_compiler.memory_map import read as read_memory
from memfit.estimation.gpu_compiler.module_text import read
from memfit.estimation.gpu_compiler.source import CompiledSource
from memfit.estimation.recording.sending import packed
from memfit.estimation.recording.specs import Leaf, Spec

MIB = 2**20
# Cut down from what XLA prints for an A100: a convolution and its filter's gradient by cuDNN, a product by cuBLAS,
# a loop of four rounds that reads one slice of a buffer in each.
TEXT = """HloModule step, is_scheduled=true, entry_computation_layout={(f32[8,4,16,16]{3,2,1,0})->f32[]}

%fused_slice (param_0: f32[4,1024], param_1: s32[]) -> f32[1,1024] {
  %param_0 = f32[4,1024]{1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  ROOT %slice.1 = f32[1,1024]{1,0} dynamic-slice(%param_0, %param_1, %param_1), dynamic_slice_sizes={1,1024}
}

%body (state: (s32[], f32[4,1024])) -> (s32[], f32[4,1024]) {
  %state = (s32[], f32[4,1024]{1,0}) parameter(0)
  %index = s32[] get-tuple-element(%state), index=0
  %buffer = f32[4,1024]{1,0} get-tuple-element(%state), index=1
  %row = f32[1,1024]{1,0} fusion(%buffer, %index), kind=kLoop, calls=%fused_slice
  ROOT %next = (s32[], f32[4,1024]{1,0}) tuple(%index, %buffer)
}

%condition (state.1: (s32[], f32[4,1024])) -> pred[] {
  %state.1 = (s32[], f32[4,1024]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (XLA_Args.1: f32[8,4,16,16], XLA_Args.2: f32[6,4,3,3]) -> f32[] {
  %XLA_Args.1 = f32[8,4,16,16]{3,2,1,0} parameter(0)
  %XLA_Args.2 = f32[6,4,3,3]{3,2,1,0} parameter(1)
  %conv.1 = (f32[8,6,16,16]{3,2,1,0}, u8[0]{0}) custom-call(%XLA_Args.1, %XLA_Args.2), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01, custom_call_target="__cudnn$convForward", metadata={op_name="net_1/conv_1/convolution"}, backend_config={"operation_queue_id":"0"}
  %out.1 = f32[8,6,16,16]{3,2,1,0} get-tuple-element(%conv.1), index=0
  %conv.2 = (f32[6,4,3,3]{3,2,1,0}, u8[0]{0}) custom-call(%XLA_Args.1, %out.1), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01, custom_call_target="__cudnn$convBackwardFilter"
  %matrix = f32[16,32]{1,0} constant({...})
  %other = f32[32,64]{1,0} constant({...})
  %gemm = (f32[16,64]{1,0}, s8[4194304]{0}) custom-call(%matrix, %other), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %zero = s32[] constant(0)
  %rows = f32[4,1024]{1,0} constant({...})
  %start = (s32[], f32[4,1024]{1,0}) tuple(%zero, %rows)
  %loop = (s32[], f32[4,1024]{1,0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %copy = f32[] copy(%zero)
}
"""  # noqa: E501
# XLA's dumps of where temporaries are and when: the second convolution is written over the first one's place.
ASSIGNMENT = """BufferAssignment:
allocation 0: size 32768, parameter 0, shape |f32[8,4,16,16]| at ShapeIndex {}:
 value: <1 XLA_Args.1 @0> (size=32768,offset=0): f32[8,4,16,16]{3,2,1,0}
allocation 7: size 57344, preallocated-temp:
 value: <2 conv.1{} @0> (size=16,offset=53248): (f32[8,6,16,16]{3,2,1,0}, u8[0]{0})
 value: <3 conv.1{0} @0> (size=49152,offset=0): f32[8,6,16,16]{3,2,1,0}
 value: <4 conv.2{0} @0> (size=864,offset=0): f32[6,4,3,3]{3,2,1,0}
 value: <5 gemm{0} @0> (size=4096,offset=49152): f32[16,64]{1,0}
 value: <6 loop{1} (phi) @0> (size=16384,offset=0): f32[4,1024]{1,0}

Total bytes used: 90112
"""
RANGES = """HloLiveRange (max 9):
  InstructionSequence:
    1:conv.1
    3:conv.2
    5:gemm
  BufferLiveRange:
    XLA_Args.1{}:0-9
    conv.1{}:1-2
    conv.1{0}:1-6
    conv.2{0}:7-8
    gemm{0}:5-8
    loop{1}:9-10
  Live ranges at 7 (peak):
    gemm{0}: 4096 bytes (cumulative: 4096 bytes)
"""


def test_a_compiled_module_tells_what_its_kernels_compute_and_move():
    kernels = sorted(read(TEXT).kernels(), key=lambda kernel: -kernel.flops)
    convolution = 2 * (8 * 6 * 16 * 16) * (4 * 3 * 3)
    moved = 4 * (8 * 4 * 16 * 16 + 6 * 4 * 3 * 3 + 8 * 6 * 16 * 16)
    # The filter's gradient computes and moves what the convolution does.
    assert kernels[0] == Kernel(convolution, moved, "f32", 2)
    assert kernels[1].flops == 2 * 16 * 64 * 32
    slices = next(kernel for kernel in kernels if kernel.count == 4)
    assert slices.bytes == 4 + 2 * 4 * 1024  # an index, and one row read and written: not the buffer
    assert read(TEXT).parameters() == 2
    assert dict(read(TEXT).convolutions()) == {"conv.1": moved, "conv.2": moved}


def test_what_lives_at_the_peak_is_named_by_its_op_and_arguments_are_left_out():
    memory = read_memory(ASSIGNMENT, RANGES)
    assert memory.fullest() == 5  # not where XLA's own dump says
    assert read(TEXT).living(memory.at(5)) == (
        Living(49152, "net_1/conv_1/convolution", "f32[8,6,16,16]"),
        Living(4096, "", "f32[16,64]"),
    )
    assert memory.occupied(7) == 864 + 4096
    assert memory.occupied(9) == 16384  # what a loop makes, round by round


def test_scratch_memory_counts_where_it_does_not_fit_into_what_is_free_while_its_kernel_runs():
    memory = read_memory(ASSIGNMENT, RANGES)
    block = 53248 + 16
    assert memory.more([("conv.1", 2**20), ("gemm", 2**19)]) == 2**20 + 49152 + 16 - block
    assert memory.more([("conv.2", 1000), ("unknown", 2**30)]) == 0


def test_a_step_takes_as_long_as_its_products_or_its_memory():
    specs = gpu("A100 40GB").specs
    bound_by_products = Kernel(int(156e12), 8, "f32", 2)
    bound_by_memory = Kernel(0, int(1555e9), "f32")
    assert least_seconds([bound_by_products, bound_by_memory], specs) == pytest.approx(3.0)
    assert specs.flops("bf16") == 2 * specs.flops("f32")
    assert gpu("T4").specs.flops("bf16") == gpu("T4").specs.flops("f32") < gpu("T4").specs.flops("f16")


class Compiler:
    """Stands in for the compiler where only arithmetic is looked at: a peak by batch size."""

    def __init__(self, temporaries):
        self.temporaries, self.asked = temporaries, []

    def __call__(self, batch):
        self.asked.append(batch)
        return Compiled(
            arguments=100 * MIB + batch * MIB,
            outputs=90 * MIB,
            alias=90 * MIB,
            temporaries=self.temporaries(batch),
            living=(Living(self.temporaries(batch) // 2, "net/conv_1/convolution", "f32[8]"),),
            kernels=(Kernel(0, batch * MIB, "f32"),),
            workspace=MIB,
            buffers=10,
            seconds=1.0,
        )


def estimate(compiler, batch):
    card = gpu("A100 40GB")
    parts = Parts(60 * MIB, 40 * MIB, MIB, ("conv",), "adam")
    return Estimate(batch, "train", CompiledSource("compiled", card, parts, Curve(compiler, card.specs)))


def test_parts_of_a_compiled_estimate_add_up_and_unknown_ones_are_in_what_it_needs():
    est = estimate(Compiler(lambda batch: 20 * MIB * batch), 16)
    assert est.peak == (100 + 16 + 320) * MIB
    assert sum(est.breakdown.values()) == est.peak
    assert est.breakdown["weights"] == 60 * MIB
    assert est.breakdown["optimizer state"] == 40 * MIB
    assert est.breakdown["inputs"] == 16 * MIB
    assert est.breakdown["activations"] == 160 * MIB
    assert est.needed == est.peak + sum(part.bytes for part in est.unknown)
    assert all("guess" in part.source or "at most" in part.source for part in est.unknown)
    assert "cuDNN workspace" in str(est)
    assert json.dumps(est.to_json())


def test_the_largest_batch_takes_three_compilations_and_fits():
    compiler = Compiler(lambda batch: 50 * MIB + 20 * MIB * batch)
    est = estimate(compiler, 16)
    largest = est.max_batch("8GiB")
    assert len(compiler.asked) <= 3
    assert est.at(largest).fits("8GiB")
    assert not est.at(largest + 2).fits("8GiB")
    assert est.max_batch("100MiB") == 0


def test_batches_between_three_compiled_ones_lie_on_a_line_where_that_holds():
    compiler = Compiler(lambda batch: 50 * MIB + 20 * MIB * batch)
    est = estimate(compiler, 16)
    for batch in (4, 16, 64):
        assert est.at(batch).peak
    assert est.at(32).peak == pytest.approx((100 + 32 + 50 + 640) * MIB)
    assert compiler.asked == [4, 16, 64]
    assert est.at(128).peak  # outside of what was compiled: not guessed
    assert compiler.asked[-1] == 128


def test_where_a_line_does_not_hold_the_batch_is_compiled():
    compiler = Compiler(lambda batch: MIB * batch**2)
    est = estimate(compiler, 16)
    for batch in (4, 16, 64, 32):
        assert est.at(batch).peak == (100 + batch + batch**2) * MIB
    assert compiler.asked == [4, 16, 64, 32]


def test_figures_are_kept_on_disk_for_the_same_step_target_and_version(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler = Compiler(lambda batch: batch)
    for _ in range(2):
        assert load_or_compile(b"step", "a100", "1", lambda: compiler(8)) == compiler(8)
    assert len(compiler.asked) == 3  # one was compiled, two were asked for to compare
    load_or_compile(b"step", "a100", "2", lambda: compiler(9))
    assert compiler.asked[-1] == 9
    for file in cache_folder().iterdir():
        file.write_text("{")  # damaged: compiled again
    load_or_compile(b"step", "a100", "2", lambda: compiler(10))
    assert compiler.asked[-1] == 10


def test_a_user_adds_a_gpu_with_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    user_folder().mkdir(parents=True)
    file = user_folder() / "mine.toml"
    lines = [
        'name = "RTX 9999"',
        "memory_mib = 65536",
        'compute_capability = "12.0"',
        "sms = 200",
        "clock_mhz = 2500",
        "bandwidth_gb_s = 2000",
        "l2_mib = 128",
        "fp16_tflops = 300",
    ]
    file.write_text("\n".join(lines))
    assert gpu("rtx 9999").specs.source == str(file)
    assert "core_count: 200" in gpu("RTX 9999").specs.target
    file.write_text('name = "RTX 9999"')
    with pytest.raises(InvalidInput, match=r"mine\.toml"):
        gpu("T4")
    file.write_text("\n".join(lines).replace("12.0", "3.5"))
    with pytest.raises(InvalidInput, match=r"compute capabilities 7\.0"):
        gpu("T4")


def test_every_described_gpu_names_its_source_and_has_plausible_figures():
    found = list(all_specs())
    assert len(found) >= 19
    for specs in found:
        assert specs.source
        # Bytes moved per product of float16: published GPUs lie between 1 and 10 per thousand.
        assert 1e-3 < specs.bandwidth_gb_s * 1e9 / (specs.fp16_tflops * 1e12) < 2e-2
        assert 4000 < specs.memory_mib < 300_000


def test_asking_about_the_compiler_imports_no_jax():
    code = (
        "import sys, memfit.estimation.gpu_compiler.asking\n"
        "from memfit.estimation.gpu_compiler.compiling import compiler_version\n"
        "try: compiler_version()\nexcept Exception: pass\n"
        "assert 'jax' not in sys.modules and 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_without_the_extra_the_reason_says_how_to_install_it(monkeypatch):
    from importlib.metadata import PackageNotFoundError

    from memfit.estimation.gpu_compiler import compiling

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(compiling, "version", missing)
    with pytest.raises(NotCompiled, match=r"pip install 'memfit\[gpu-compiler\]'"):
        compiling.compiler_version()
    monkeypatch.setattr(compiling, "version", lambda name: "0.10.2" if name == "jax" else "0.9")
    with pytest.raises(NotCompiled, match="different versions"):
        compiling.compiler_version()


def test_a_recording_says_where_xla_is_known_to_take_far_more():
    import keras
    from keras import layers

    from memfit.estimation.gpu_compiler.asking import describe_doubt

    def recurrent(layer):
        model = keras.Sequential([keras.Input((8, 4)), layer, layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    looping = recurrent(layers.Bidirectional(layers.LSTM(4, use_cudnn=False, name="loop")))
    said = describe_doubt(looping)
    assert all(part in said for part in ("several times", "forward_loop", "backward_loop"))
    assert describe_doubt(recurrent(layers.SimpleRNN(4, unroll=True))) == ""
    assert describe_doubt(recurrent(layers.LSTM(4))) == ""  # on cuDNN, which is not XLA's
    assert describe_doubt(recurrent(layers.Flatten())) == ""


class Probe(keras.Model):
    """Trains a head on features that it leaves as they are; both are built in the first step."""

    def __init__(self):
        super().__init__()
        self.features, self.head = keras.layers.Dense(40), keras.layers.Dense(25)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.head(self.features(data)))
        weights = self.head.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_a_custom_step_is_lowered_with_the_state_of_what_it_trains():
    model = Probe()
    model.compile("adam")
    _, parts = lower_here(packed(model, Spec(Leaf((6,), "float32"))), None, 8, "train")
    head = 40 * 25 + 25
    assert parts.weights == 4 * (6 * 40 + 40 + head)
    assert parts.optimizer == pytest.approx(4 * 2 * head, abs=16)  # and its counter and learning rate
