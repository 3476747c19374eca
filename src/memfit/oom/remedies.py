"""The changes that help most against each way of running out, best first: one table, filled in with the figures."""

from dataclasses import replace

from memfit.oom.explanation import Change, Explanation, Kind
from memfit.sizes import Size

_MIB = 2**20

# In braces: what `_fill` knows of the failure.
_FIT = Change(
    "memfit.fit(model, ..., memory={memory})",
    "same batch, same results: micro-batches and rematerialisation as far as they are needed",
    Kind.FIT,
)
_SMALLER_BATCH = Change(
    "model.fit(..., batch_size={half})", "{half_of}less memory, different convergence", Kind.SMALLER_BATCH
)
_SMALLER_VALIDATION = Change(
    "model.fit(..., validation_batch_size={half_of_tensor})", "same metrics: only the slices are smaller"
)
_PREDICT = Change(
    'memfit.predict(model, x, batch_size=8, out="predictions.npy")',
    "same predictions in smaller slices, streamed to disk instead of gathered",
)
_PRECISION = Change(
    'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    "before the model is built: about half of the activations, lower numeric precision",
)
_HALF_WEIGHTS = Change(
    'keras.config.set_floatx("bfloat16")',
    "before the model is built: half of the weights, lower numeric precision",
)
_OPTIMIZER = Change(
    "model.compile(optimizer=keras.optimizers.Lion(), ...)",
    "Adam keeps two values per weight, Lion one, SGD without momentum none; different convergence",
)
_FUSED_UPDATE = Change(
    "model.compile(..., jit_compile=True)",
    "XLA fuses the update, which otherwise holds copies of the weights",
)
_NO_XLA = Change(
    "model.compile(..., jit_compile=False)", "without XLA the step takes its memory in many pieces"
)
_NO_XLA_WORKSPACE = Change(
    "model.compile(..., jit_compile=False)", "without XLA cuDNN falls back to kernels with a small workspace"
)
_NO_AUTOTUNING = Change(
    "XLA_FLAGS=--xla_gpu_autotune_level=0 python train.py", "tries no kernels: less memory, slower ones"
)
_ASYNC = Change(
    "TF_GPU_ALLOCATOR=cuda_malloc_async python train.py",
    "CUDA's own allocator, which fragments less; same results",
)
_ONE_REGION = Change(
    "memfit.configure(memory={memory})",
    "one region from the start: regions that were added by growth cannot be joined",
)
_GROWTH = Change(
    "memfit.configure()",
    "first line of the script: TensorFlow takes what it needs and leaves the rest to others",
)
_HALF_DEVICE = Change('memfit.configure(memory="50%")', "a fixed limit that leaves room for the others")
_ROOM_FOR_LIBRARIES = Change(
    'memfit.configure(memory="80%")', "a limit that leaves room for cuDNN and cuBLAS outside of it"
)
_RELEASE = Change(
    "memfit.release()", "before the next model is built: an earlier one of this process may hold the memory"
)
_NVIDIA_SMI = Change("nvidia-smi", "shows which processes hold the GPU; end those that are left over")
_DOCTOR = Change("memfit doctor", "shows who holds which memory, and what TensorFlow takes at its start")
_LINT = Change(
    "memfit lint train.py",
    "finds caches, shuffle buffers and prefetches that are too large, with their bytes",
)
_IMAGES = Change(
    'memfit.images("photos/", size=(224, 224), batch_size=64, memory="4GiB")',
    "an image pipeline whose cache and prefetch stay inside that much of the host's memory",
)
_ARRAYS = Change(
    "model.fit(memfit.arrays(x, y, batch_size=32), ...)",
    "feeds arrays batch by batch instead of copying all of them into one tensor",
)
_PREFETCH = Change(
    "dataset.prefetch(1)", "in place of a larger one or AUTOTUNE: one batch waits instead of many"
)
_SURVIVE = Change(
    "memfit run train.py", "restarts the script after such an end; it continues at the batch it was at"
)
_NO_ONEDNN = Change(
    "TF_ENABLE_ONEDNN_OPTS=0 python train.py", "oneDNN kernels crash where the others raise an error"
)
_FAULTHANDLER = Change("python -X faulthandler train.py", "prints where it crashed")

_STEP = (_FIT, _PRECISION, _SMALLER_BATCH)
_COMPILED = (_FIT, _SMALLER_BATCH, _NO_XLA)
_DATA = (_LINT, _IMAGES, _PREFETCH)
_LARGE_ARRAY = (_ARRAYS, _FIT, _SMALLER_BATCH)
_BY_PHASE = {
    "update": (_OPTIMIZER, _FUSED_UPDATE, _DOCTOR),
    "validation": (_SMALLER_VALIDATION, _FIT, _PRECISION),
    "prediction": (_PREDICT, _PRECISION, _DOCTOR),
    "building": (_DOCTOR, _RELEASE, _HALF_WEIGHTS),
    "data": _DATA,
    "step": _COMPILED,
}
_BY_CAUSE = {
    "array": (_ARRAYS, _IMAGES, _LINT),
    "autotuning": (_FIT, _NO_AUTOTUNING, _NO_XLA_WORKSPACE),
    "batch": _DATA,
    "copy": (_ARRAYS, _FIT, _GROWTH),
    "handle": (_GROWTH, _ROOM_FOR_LIBRARIES, _NVIDIA_SMI),
    "killed": (_LINT, _DOCTOR, _SURVIVE),
    "others": (_NVIDIA_SMI, _GROWTH, _HALF_DEVICE),
    "pinned": (_PREFETCH, _LINT, _DOCTOR),
    "segfault": (_NO_ONEDNN, _FAULTHANDLER, _SURVIVE),
    "unknown": (),
    "warning": (),
    "xla": _COMPILED,
}


def find_changes(explanation: Explanation, batch_size: int | None = None) -> tuple[Change, ...]:
    """Returns at most three changes against what ran out, best first.

    Args:
        explanation: What ran out.
        batch_size: The batch of the training, where it is known.
    """
    return tuple(_fill(change, explanation, batch_size) for change in _choose(explanation))


def _choose(explanation: Explanation) -> tuple[Change, ...]:
    phase = explanation.asked.phase if explanation.asked is not None else ""
    if explanation.cause in ("device", "exhausted"):
        return _BY_PHASE.get(phase, _STEP)
    if explanation.cause not in ("too large", "block"):
        return _BY_CAUSE[explanation.cause]
    if phase or (explanation.cause == "block" and explanation.asked is None):
        smaller = _BY_PHASE.get(phase, _STEP)
    else:
        smaller = _LARGE_ARRAY
    # Another allocator helps a GPU; the arena has no other: there only smaller pieces help.
    if explanation.cause == "block" and explanation.device != "arena":
        return _ASYNC, _ONE_REGION, smaller[0]
    return smaller


def _fill(change: Change, explanation: Explanation, batch_size: int | None) -> Change:
    """Returns a change with the failure's figures in its text."""
    asked = explanation.asked
    first = asked.shape[0] if asked is not None and asked.shape else None
    has_batch = asked is not None and asked.phase in ("forward", "validation", "prediction")
    batch = batch_size or (first if has_batch else None)
    half_of = "half of it; " if batch_size else f"half of the tensor's first dimension, {batch}; "
    figures = {
        "memory": _memory(explanation.limit),
        "half": _halve(batch),
        "half_of": half_of if batch is not None and batch > 1 else "",
        "half_of_tensor": _halve(first),
    }
    return replace(change, do=change.do.format_map(figures), why=change.why.format_map(figures))


def _halve(samples: int | None) -> str:
    return str(samples // 2) if samples is not None and samples > 1 else "<half of it>"


def _memory(limit: Size | None) -> str:
    """A size as one writes it in code, rounded down to whole MiB; "80%" of the device where it is not known."""
    return f'"{limit // _MIB}MiB"' if limit else '"80%"'
