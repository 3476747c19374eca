"""Rules about time: work that waits, runs alone, or runs sample by sample without need."""

import math
from collections.abc import Iterator

from memfit.compat.tf_datasets import PYTHON_OPS
from memfit.data.linting.findings import Finding
from memfit.data.linting.view import DECODERS, View, decodes, foreign_python

# What decoding one photo of 500 x 375 took on one core (benchmarks/data): the order of magnitude at stake.
_DECODE_MS = 1.0
# What calling a map function cost beyond its work: about this much per element.
_CALL_US = 20
# Ops that do to a batch what they do to each of its elements, if shapes are equal.
_ELEMENTWISE = {
    *("Abs", "Add", "AddV2", "Cast", "ClipByValue", "Const", "Div", "Exp", "Identity", "Log", "Maximum"),
    *("Minimum", "Mul", "NoOp", "OneHot", "Pow", "RealDiv", "Round", "Sqrt", "Square", "Sub"),
}
_ARITHMETIC = {"AddV2", "Div", "Mul", "RealDiv", "Sub"}


def no_parallel_calls(view: View) -> Iterator[Finding]:
    """Decoding one image after another."""
    if not view.batched:
        return
    for stage in view.of_kind("map"):
        if decodes(stage) and (not stage.parallel or stage.numbers[:1] == (1,)):
            yield Finding(
                "no-parallel-calls",
                stage.place,
                "Images are decoded one after another.",
                "a speed-up of up to the number of cores: " + _time(stage.count, _DECODE_MS),
                "ds.map(load, num_parallel_calls=tf.data.AUTOTUNE)",
            )


def missing_prefetch(view: View) -> Iterator[Finding]:
    """No batch ready when the device wants one."""
    prefetches = view.behind_device_copy is not None or any(True for _ in view.of_kind("prefetch"))
    if prefetches or not view.batched:
        return
    if any(decodes(stage) or foreign_python(stage) for stage in view.of_kind("map")):
        yield Finding(
            "missing-prefetch",
            view.stages[-1].place,
            "Nothing is prepared ahead: the device waits while a batch is made, and the CPU while it trains.",
            "the time of the shorter of the two, in every step",
            "End with ds.prefetch(tf.data.AUTOTUNE)",
        )


def prefetch_before_work(view: View) -> Iterator[Finding]:
    """Heavy work behind the last prefetch, so that it is not done ahead."""
    prefetches = list(view.of_kind("prefetch"))
    if not prefetches or not view.batched:
        return
    last = prefetches[-1]
    for stage in view.after(last):
        own = [node for node in stage.nodes if node.op in PYTHON_OPS and "memfit/" in node.name]
        if stage.kind == "map" and not own and (DECODERS & stage.ops() or foreign_python(stage)):
            yield Finding(
                "prefetch-not-last",
                stage.place,
                f"This work comes after the last prefetch (stage {last.place}), so it is not done ahead.",
                _time(stage.count, _DECODE_MS),
                "Move the prefetch to the end",
            )


def python_in_map(view: View) -> Iterator[Finding]:
    """Python code in a map: without a shape, or run in parallel in vain."""
    for stage in view.of_kind("map"):
        if not foreign_python(stage):
            continue
        if any(shape is None for shape in stage.shapes):
            yield Finding(
                "python-loses-shape",
                stage.place,
                "A py_function or numpy_function hands on tensors of unknown shape.",
                "batching, static shapes and XLA further on; often an error in the model",
                "result.set_shape(...) or tf.ensure_shape(result, ...) after it",
            )
        if stage.parallel and stage.numbers[:1] != (1,):
            yield Finding(
                "python-serialises",
                stage.place,
                "Parallel calls of Python code take turns: Python runs one at a time.",
                "nearly all of the expected speed-up",
                "TensorFlow ops, or Python on whole batches, or a separate process for the data",
            )


def map_before_batch(view: View) -> Iterator[Finding]:
    """Cheap arithmetic done sample by sample that could be done batch by batch."""
    for stage in view.of_kind("map"):
        batches = [later for later in view.after(stage) if stage in later.inputs and later.kind == "batch"]
        if not batches or stage.count in (None, math.inf) or stage.bytes_with() is None:
            continue
        ops = stage.ops()
        if ops <= _ELEMENTWISE and ops & _ARITHMETIC and (stage.count or 0) * _CALL_US >= 1e6:
            yield Finding(
                "map-before-batch",
                stage.place,
                "Simple arithmetic is done sample by sample; one call per batch does the same.",
                _time(stage.count, _CALL_US / 1e3),
                "ds.batch(n).map(f): this f works on whole batches as it is",
            )


def _time(count: float | None, each_ms: float) -> str:
    if count in (None, math.inf):
        return f"about {each_ms:g} ms per element"
    return f"about {(count or 0) * each_ms / 1e3:,.1f} s per epoch"


def device_copy_not_last(view: View) -> Iterator[Finding]:
    """Work behind the copy to the device."""
    behind = view.behind_device_copy or ()
    later = [name for name in behind if not any(word in name for word in ("prefetch", "options"))]
    if later:
        yield Finding(
            "device-prefetch-not-last",
            later[0],
            "Stages after prefetch_to_device bring the data back to the host.",
            "a copy to the device and back for every batch",
            "tf.data.experimental.prefetch_to_device(...) as the very last stage",
        )


RULES = (
    no_parallel_calls,
    missing_prefetch,
    prefetch_before_work,
    python_in_map,
    map_before_batch,
    device_copy_not_last,
)
