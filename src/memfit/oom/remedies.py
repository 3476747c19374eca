"""The changes that help most against each way of running out, best first."""

from collections.abc import Callable
from dataclasses import dataclass

from memfit.oom.verdict import Verdict
from memfit.sizes import Size

_MIB = 2**20


@dataclass(frozen=True)
class Change:
    """One thing to do.

    Attributes:
        do: The exact line to write or run.
        why: What it changes, and what it costs.
        effect: The predicted effect on the model at hand; empty where there is none at hand.
    """

    do: str
    why: str
    effect: str = ""


def changes(verdict: Verdict, batch_size: int | None = None) -> tuple[Change, ...]:
    """Returns at most three changes against what a verdict found, best first.

    Args:
        verdict: What ran out.
        batch_size: The batch of the training, where it is known.
    """
    if verdict.cause in ("device", "exhausted"):
        phase = verdict.request.phase if verdict.request is not None else ""
        rule = _BY_PHASE.get(phase, _step)
    else:
        rule = _BY_CAUSE[verdict.cause]
    return tuple(rule(verdict, batch_size))[:3]


def _fit(verdict: Verdict) -> Change:
    return Change(
        f"memfit.fit(model, ..., memory={_memory(verdict.limit)})",
        "same batch, same results: micro-batches and rematerialisation as far as they are needed",
    )


def _memory(limit: Size | None) -> str:
    """A size as one writes it in code, rounded down to whole MiB; "80%" of the device where it is not known."""
    return f'"{limit // _MIB}MiB"' if limit else '"80%"'


def _smaller_batch(verdict: Verdict, batch_size: int | None) -> Change:
    shape = verdict.request.shape if verdict.request is not None else None
    in_forward = verdict.request is not None and verdict.request.phase in (
        "forward",
        "validation",
        "prediction",
    )
    known = batch_size or (shape[0] if shape and in_forward else None)
    if known is None or known < 2:
        return Change("model.fit(..., batch_size=<half of it>)", "less memory, but another training")
    source = "half of it" if batch_size else f"half of the tensor's first dimension, {known}"
    return Change(f"model.fit(..., batch_size={known // 2})", f"{source}; less memory, but another training")


_PRECISION = Change(
    'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    "before the model is built: about half of the activations, other numerics",
)
_DOCTOR = Change("memfit doctor", "shows who holds which memory, and what TensorFlow takes at its start")
_GROWTH = Change(
    "memfit.configure()",
    "first line of the script: TensorFlow takes what it needs and leaves the rest to others",
)
_ASYNC = Change(
    "TF_GPU_ALLOCATOR=cuda_malloc_async python train.py",
    "CUDA's own allocator, which fragments less; same results",
)
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
    "memfit run train.py",
    "started again after such an end, the script goes on at the batch it was at",
)


def _step(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [_fit(verdict), _PRECISION, _smaller_batch(verdict, batch_size)]


def _update(verdict: Verdict, batch_size: int | None) -> list[Change]:
    why = "Adam keeps two further values a weight, Adafactor next to none; the training takes another path"
    return [
        Change("model.compile(optimizer=keras.optimizers.Adafactor(), ...)", why),
        Change(
            "model.compile(..., jit_compile=True)",
            "XLA fuses the update, which otherwise holds copies of the weights",
        ),
        _DOCTOR,
    ]


def _validation(verdict: Verdict, batch_size: int | None) -> list[Change]:
    shape = verdict.request.shape if verdict.request is not None else None
    half = shape[0] // 2 if shape and shape[0] > 1 else None
    value = str(half) if half else "<half of it>"
    return [
        Change(f"model.fit(..., validation_batch_size={value})", "same metrics: only the slices are smaller"),
        _fit(verdict),
        _PRECISION,
    ]


def _prediction(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [
        Change(
            'memfit.predict(model, x, batch_size=8, out="predictions.npy")',
            "same predictions in smaller slices, streamed to disk instead of gathered",
        ),
        _PRECISION,
        _DOCTOR,
    ]


def _building(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [
        _DOCTOR,
        Change(
            "memfit.release()",
            "before the next model is built: an earlier one of this process may hold the memory",
        ),
        Change(
            'keras.config.set_floatx("bfloat16")',
            "before the model is built: half of the weights, other numerics",
        ),
    ]


def _data(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [_LINT, _IMAGES, _PREFETCH]


def _too_large(verdict: Verdict, batch_size: int | None) -> list[Change]:
    if verdict.request is not None and verdict.request.phase:
        return _BY_PHASE.get(verdict.request.phase, _step)(verdict, batch_size)
    return [_ARRAYS, _fit(verdict), _smaller_batch(verdict, batch_size)]


def _block(verdict: Verdict, batch_size: int | None) -> list[Change]:
    """Another allocator on a GPU; in the arena, which has no other, smaller pieces."""
    smaller = _too_large(verdict, batch_size) if verdict.request is not None else _step(verdict, batch_size)
    if verdict.device == "arena":
        return smaller
    limit = f"memfit.configure(memory={_memory(verdict.limit)})"
    fixed = Change(limit, "one region from the start: regions that were added by growth cannot be joined")
    return [_ASYNC, fixed, smaller[0]]


def _others(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [
        Change("nvidia-smi", "shows which processes hold the GPU; end those that are left over"),
        _GROWTH,
        Change('memfit.configure(memory="50%")', "a fixed limit that leaves room for the others"),
    ]


def _handle(verdict: Verdict, batch_size: int | None) -> list[Change]:
    room = Change(
        'memfit.configure(memory="80%")', "a limit that leaves room for cuDNN and cuBLAS outside of it"
    )
    return [_GROWTH, room, Change("nvidia-smi", "shows whether another process holds the GPU")]


def _autotuning(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [
        _fit(verdict),
        Change(
            "XLA_FLAGS=--xla_gpu_autotune_level=0 python train.py",
            "tries no kernels: less memory, slower ones",
        ),
        Change(
            "model.compile(..., jit_compile=False)",
            "without XLA cuDNN falls back to kernels with a small workspace",
        ),
    ]


def _xla(verdict: Verdict, batch_size: int | None) -> list[Change]:
    without = Change(
        "model.compile(..., jit_compile=False)", "without XLA the step takes its memory in many pieces"
    )
    return [_fit(verdict), _smaller_batch(verdict, batch_size), without]


def _copy(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [_ARRAYS, _fit(verdict), _GROWTH]


def _pinned(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [_PREFETCH, _LINT, _DOCTOR]


def _killed(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [_LINT, _DOCTOR, _SURVIVE]


def _array(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [_ARRAYS, _IMAGES, _LINT]


def _segfault(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return [
        Change(
            "TF_ENABLE_ONEDNN_OPTS=0 python train.py", "oneDNN kernels crash where the others raise an error"
        ),
        Change("python -X faulthandler train.py", "prints where it crashed"),
        _SURVIVE,
    ]


def _nothing(verdict: Verdict, batch_size: int | None) -> list[Change]:
    return []


_Rule = Callable[[Verdict, int | None], list[Change]]
_BY_PHASE: dict[str, _Rule] = {
    "update": _update,
    "validation": _validation,
    "prediction": _prediction,
    "building": _building,
    "data": _data,
    "step": _xla,
}
_BY_CAUSE: dict[str, _Rule] = {
    "array": _array,
    "autotuning": _autotuning,
    "batch": _data,
    "block": _block,
    "copy": _copy,
    "handle": _handle,
    "killed": _killed,
    "others": _others,
    "pinned": _pinned,
    "segfault": _segfault,
    "too large": _too_large,
    "unknown": _nothing,
    "warning": _nothing,
    "xla": _xla,
}
