"""The room's interface: an error or a log in, an `Explanation` out."""

import re
import traceback
from dataclasses import replace

from memfit.budgets.budget import budget
from memfit.compat.tf_runtime import ARENA_ALLOCATOR
from memfit.errors import COLOURS, InvalidInput, ProcessDied
from memfit.oom.allocator import Failure, read_buffers, read_failures
from memfit.oom.explanation import Explanation, Held
from memfit.oom.remedies import find_changes
from memfit.oom.request import Request, node_of, read_request, tensor_of
from memfit.oom.symptoms import device_memory, find_symptom, killed_at, killed_resident
from memfit.sizes import Size

_HOST_ALLOCATORS = ("cpu", "mklcpu", "gpu_host_bfc", "cuda_host_bfc")
_ERROR = re.compile(
    r"OOM when allocating|Out of memory while trying|Failed to allocate memory for the batch|Dst tensor"
)
_FAILED = "ran out of memory trying to allocate"
# What is said about chunks: more than these three would not be "a few lines".
_MOST_HELD = 3
_WORTH_SAYING = 0.02


def read_error(error: BaseException | str, batch_size: int | None = None) -> Explanation:
    """Reads what an exception or a log says about memory that ran out.

    Args:
        error: An exception, or text: a log, a traceback, or both.
        batch_size: The batch that was trained with, where it is known; half of it is among the changes.

    Raises:
        InvalidInput: If `error` is neither, or `batch_size` is not positive.

    Example:
        >>> text = "OOM when allocating tensor with shape[64,112,112,64] and type float on "
        >>> text += "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
        >>> read_error(text).asked.bytes
        Size('196 MiB')
    """
    if batch_size is not None and batch_size < 1:
        raise InvalidInput("`batch_size` is a positive number of samples", received=batch_size)
    # An exception is of this process, which has Keras 3; a text may be of any.
    explanation = _judge(COLOURS.sub("", _text(error)), keras_3=isinstance(error, BaseException))
    if isinstance(error, BaseException) and explanation.limit is None:
        # The text of this process's exception does not say what the device has.
        devices = budget().devices
        if devices and explanation.device in ("arena", "GPU:0"):
            explanation = replace(explanation, limit=devices[0].total)
    return replace(explanation, changes=find_changes(explanation, batch_size))


def ran_out_of_memory(error: BaseException) -> bool:
    """Says whether an error is that memory ran out; by name, as TensorFlow may not be there.

    A GPU's libraries report a failed allocation as an internal error, and Keras that of an eager layer as a
    RuntimeError: there only the text can tell.
    """
    names = {base.__name__ for base in type(error).__mro__}
    if names & {"ResourceExhaustedError", "OutOfMemory", "MemoryError"}:
        return True
    if "OpError" not in names and not isinstance(error, RuntimeError):
        return False
    return read_error(error).ran_out in ("device", "host", "block")


def _text(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, ProcessDied) and error.signal is not None:
        return error.signal.name  # its message speaks of memory for every signal, as a guess
    if isinstance(error, BaseException):
        return "".join(traceback.format_exception(error))
    raise InvalidInput("Only an exception or a text can be explained", received=type(error).__name__)


def _judge(text: str, *, keras_3: bool) -> Explanation:
    """What ran out, decided from everything a text says, with the figures it stands on."""
    killed = killed_at(text)
    last_error = max((match.start() for match in _ERROR.finditer(text)), default=-1)
    if killed > max(last_error, text.rfind(_FAILED)):
        return _judge_symptom(text[killed:], keras_3=keras_3)
    lines = text.splitlines()
    failures = read_failures(lines)
    symptom = find_symptom(text)
    shape, _, device, allocator = tensor_of(text)
    if not failures and shape is None:
        return _judge_symptom(text, keras_3=keras_3)
    failure = _choose_decisive(failures, lines, node_of(text)) if failures else None
    request = read_request(text, failure.op if failure else "", keras_3=keras_3)
    where = _name_device(failure.allocator if failure else allocator, device)
    ran_out, cause, says = _judge_failure(failure, where, request)
    if symptom is not None:
        below_limit = failure is None or failure.free is None or failure.requested <= failure.free
        if ran_out == "device" and symptom[0].name == "others" and below_limit:
            cause, says = "others", symptom[0].says
        if cause in ("device", "too large") and symptom[0].name in ("autotuning", "xla"):
            cause = symptom[0].name
    explanation = Explanation(
        ran_out,
        cause,
        says,
        device=where,
        asked=request,
        requested=request.bytes if request else None,
        held=_list_held(failure, text),
        failures=len(failures) or 1,
    )
    if failure is None:
        return explanation
    return replace(
        explanation,
        requested=failure.requested,
        limit=failure.limit,
        in_use=failure.in_use,
        largest_free=failure.largest_free,
        wasted=failure.wasted,
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
    if allocator in _HOST_ALLOCATORS:
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
        cause = "too large" if cause == "device" else cause
        return "device", cause, "a single request is larger than all of the memory"
    if failure.free is not None and failure.requested <= failure.free:
        if failure.largest_free is not None and failure.largest_free >= failure.requested:
            # The allocator had a piece, or room to take one, and still failed: the device refused it.
            says = "the device gave less than TensorFlow's limit: something else holds the rest"
            return "device", "others", says
        return "block", "block", "enough was free, but not in one piece (fragmentation)"
    return "device", cause, "not enough was free"


def _list_held(failure: Failure | None, text: str) -> tuple[Held, ...]:
    buffers = [Held(what, size) for what, size in read_buffers(text)]
    if buffers or failure is None:
        return tuple(buffers[:_MOST_HELD])
    chunks = sorted(failure.chunks, key=lambda chunk: -chunk.total)
    total = sum(chunk.total for chunk in chunks)
    shown = [chunk for chunk in chunks[:_MOST_HELD] if chunk.total >= _WORTH_SAYING * total]
    held = []
    for chunk in shown:
        pieces = f"{chunk.pieces} x {chunk.size}" if chunk.pieces > 1 else "one piece"
        the_size = ", the size asked for" if chunk.size == failure.requested else ""
        held.append(Held(pieces + the_size, chunk.total))
    rest = chunks[len(shown) :]
    if rest:
        size = Size(sum(chunk.total for chunk in rest))
        held.append(Held(f"{sum(chunk.pieces for chunk in rest)} other pieces", size))
    return tuple(held)


def _judge_symptom(text: str, *, keras_3: bool) -> Explanation:
    """The verdict where neither an allocator's report nor a tensor is in the text."""
    symptom_and_bytes = find_symptom(text)
    if symptom_and_bytes is None:
        return Explanation(
            "unknown", "unknown", "memfit does not recognise an out-of-memory error in this text"
        )
    symptom, requested = symptom_and_bytes
    ran_out = {"none": "nothing", "unsure": "unknown"}.get(symptom.where, symptom.where)
    free_and_total = device_memory(text) if symptom.where == "device" else None
    resident = killed_resident(text) if symptom.name == "killed" else None
    request = None if ran_out == "nothing" else read_request(text, "", keras_3=keras_3)
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
