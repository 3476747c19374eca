"""What ran out, decided from everything a text says, with the figures it stands on."""

import re

from memfit.compat.tf_runtime import ARENA_ALLOCATOR
from memfit.oom.allocator import Chunks, Failure, read_failures
from memfit.oom.buffers import read_buffers
from memfit.oom.explanation import Explanation, Held
from memfit.oom.request import Request, node_of, read_request, tensor_of
from memfit.oom.symptoms import device_memory, find_symptom, killed_at, killed_resident
from memfit.sizes import Size

_HOST_ALLOCATORS = re.compile(r"^(cpu|mklcpu|gpu_host_bfc|cuda_host_bfc)$")
_ERROR = re.compile(
    r"OOM when allocating|Out of memory while trying|Failed to allocate memory for the batch|Dst tensor"
)
_FAILED = "ran out of memory trying to allocate"
# What is said about chunks: more than these three would not be "a few lines".
_MOST_HELD = 3
_WORTH_SAYING = 0.02


def judge(text: str) -> Explanation:
    """Returns what a text says about memory that ran out, without changes."""
    killed = killed_at(text)
    last_error = max((match.start() for match in _ERROR.finditer(text)), default=-1)
    if killed > max(last_error, text.rfind(_FAILED)):
        return _judge_symptom(text[killed:])
    lines = text.splitlines()
    failures = read_failures(lines)
    symptom = find_symptom(text)
    shape, _, device, allocator = tensor_of(text)
    if not failures and shape is None:
        return _judge_symptom(text)
    failure = _choose_decisive(failures, lines, node_of(text)) if failures else None
    request = read_request(text, failure.op if failure else "")
    where = _name_device(failure.allocator if failure else allocator, device)
    requested = failure.requested if failure else (request.bytes if request else None)
    ran_out, cause, says = _judge_failure(failure, where, request)
    if ran_out == "device" and symptom is not None and symptom[0].name == "others" and _below_limit(failure):
        cause, says = "others", symptom[0].says
    if cause in ("device", "too large") and symptom is not None and symptom[0].name in ("autotuning", "xla"):
        cause = symptom[0].name
    return Explanation(
        ran_out,
        cause,
        says,
        device=where,
        asked=request,
        requested=requested,
        limit=failure.limit if failure else None,
        in_use=failure.in_use if failure else None,
        largest_free=failure.largest_free if failure else None,
        wasted=failure.wasted if failure else None,
        held=_list_held(failure, text),
        failures=len(failures) or 1,
    )


def _choose_decisive(failures: list[Failure], lines: list[str], node: str) -> Failure:
    """Returns the failure that the error is about: the last one of the op that raised, or before the error.

    Other threads go on allocating, and failing, after the first failure has become an error.
    """
    errors = [index for index, line in enumerate(lines) if _ERROR.search(line)]
    before = [failure for failure in failures if not errors or failure.line <= errors[-1]] or failures
    if not node:
        return before[-1]
    of_the_node = [failure for failure in before if failure.op.endswith(node)]
    return (of_the_node or before)[-1]


def _name_device(allocator: str, device: str) -> str:
    if allocator == ARENA_ALLOCATOR:
        return "arena"
    if _HOST_ALLOCATORS.match(allocator):
        return "host"
    number = re.search(r"(?:GPU_|gpu_async_|GPU:)(\d+)", f"{allocator} {device}")
    return f"GPU:{number[1]}" if number else ""


def _judge_failure(failure: Failure | None, where: str, request: Request | None) -> tuple[str, str, str]:
    phase = "" if request is None else request.phase
    cause = "batch" if phase == "data" else "device"
    if where == "host":
        return "host", cause if phase else "array", "not enough was free"
    if failure is None or failure.limit is None:
        return "device", cause, "not enough was free"
    if failure.requested > failure.limit:
        return (
            "device",
            "too large" if cause == "device" else cause,
            "more than all there is was asked for at once",
        )
    free = failure.free
    if free is not None and failure.requested <= free:
        if failure.largest_free is not None and failure.largest_free >= failure.requested:
            # The allocator had a piece, or room to take one, and still failed: the device refused it.
            return (
                "device",
                "others",
                "the device gave less than TensorFlow's limit: something else holds the rest",
            )
        return "block", "block", "enough was free, but not in one piece (fragmentation)"
    return "device", cause, "not enough was free"


def _below_limit(failure: Failure | None) -> bool:
    return failure is None or failure.free is None or failure.requested <= failure.free


def _list_held(failure: Failure | None, text: str) -> tuple[Held, ...]:
    buffers = [Held(what, size) for what, size in read_buffers(text)]
    if failure is None or not failure.chunks:
        return tuple(buffers[:_MOST_HELD])
    chunks = sorted(failure.chunks, key=lambda chunk: -chunk.total)
    total = sum(chunk.total for chunk in chunks)
    shown = [chunk for chunk in chunks[:_MOST_HELD] if chunk.total >= _WORTH_SAYING * total]
    held = [Held(_describe_chunks(chunk, failure.requested), chunk.total) for chunk in shown]
    rest = chunks[len(shown) :]
    if rest:
        size = Size(sum(chunk.total for chunk in rest))
        held.append(Held(f"{sum(chunk.count for chunk in rest)} other pieces", size))
    return tuple(buffers[:_MOST_HELD] or held)


def _describe_chunks(chunk: Chunks, requested: Size) -> str:
    pieces = f"{chunk.count} x {chunk.size}" if chunk.count > 1 else "one piece"
    return f"{pieces}, the size asked for" if chunk.size == requested else pieces


def _judge_symptom(text: str) -> Explanation:
    """The verdict where neither an allocator's report nor a tensor is in the text."""
    symptom_and_bytes = find_symptom(text)
    if symptom_and_bytes is None:
        return Explanation(
            "unknown", "unknown", "this text does not say that memory ran out in a way memfit knows"
        )
    symptom, requested = symptom_and_bytes
    ran_out = {"none": "nothing", "unsure": "unknown"}.get(symptom.where, symptom.where)
    free_and_total = device_memory(text) if symptom.where == "device" else None
    resident = killed_resident(text) if symptom.name == "killed" else None
    request = None if ran_out == "nothing" else read_request(text, "")
    cause = "batch" if request is not None and request.phase == "data" else symptom.name
    return Explanation(
        ran_out,
        cause,
        symptom.says,
        device="host" if symptom.where == "host" else "",
        asked=request,
        requested=requested,
        limit=free_and_total[1] if free_and_total else None,
        in_use=Size(free_and_total[1] - free_and_total[0]) if free_and_total else resident,
        held=_list_held(None, text),
        failures=0 if ran_out in ("nothing", "unknown") else 1,
    )
