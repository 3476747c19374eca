"""The other ways in which a text says that memory ran out: drivers, libraries, compilers, kernels of the system."""

import re
from dataclasses import dataclass

from memfit.oom.allocator import read_size
from memfit.sizes import Size


@dataclass(frozen=True)
class Symptom:
    """A line that tells of memory.

    Attributes:
        name: Which kind of line it is; what the remedies go by.
        where: "device", "host", "none" for a warning after which nothing failed, or "unsure".
        says: What it means, as a sentence.
        pattern: What the line looks like.
    """

    name: str
    where: str
    says: str
    pattern: re.Pattern[str]


def _symptom(name: str, where: str, says: str, pattern: str) -> Symptom:
    return Symptom(name, where, says, re.compile(pattern))


_EXIT = r"exit(?:ed)?(?: with)?(?: |-)?(?:code|status)[ :=]*"
_SIZED = r"(?P<size>[\d.]+) ?(?P<unit>[KMGT]?)(?:i?B)?"

_TRYING = re.compile(rf"trying to allocate {_SIZED}")

# Weightiest first: the first that is found explains the text.
SYMPTOMS = (
    _symptom(
        "pinned",
        "host",
        "the host had no more memory to pin for copies to the GPU",
        r"failed to alloc (?P<bytes>\d+) bytes on host|pinned host memory of size: (?P<bytes2>\d+)",
    ),
    _symptom(
        "autotuning",
        "device",
        "XLA found no room to try the kernels of a convolution or a matrix product",
        r"(?:Autotuning failed for HLO|Failed to determine best cudnn convolution algorithm)"
        r"(?=[\s\S]{0,4000}(?:RESOURCE_EXHAUSTED|Resource exhausted|[Oo]ut of memory|No valid config))",
    ),
    _symptom(
        "xla",
        "device",
        "a program compiled by XLA could not get its memory, which it takes in one piece",
        rf"Out of memory while trying to allocate {_SIZED}(?: bytes)?",
    ),
    _symptom(
        "xla",
        "device",
        "a program compiled by XLA could not get its memory",
        r"Failed to allocate request for [\d.]+\w* \((?P<bytes>\d+)B\) on device ordinal \d+",
    ),
    _symptom(
        "handle",
        "device",
        "cuDNN or cuBLAS found no memory outside of what TensorFlow had taken",
        r"CU(?:DNN|BLAS)_STATUS_ALLOC_FAILED",
    ),
    _symptom(
        "handle",
        "device",
        "cuDNN or cuBLAS could not start, most often because TensorFlow or another program had taken the GPU's "
        "memory (else the driver or cuDNN's version is wrong)",
        r"(?:[Cc]ould not create cudnn handle|failed to create cublas handle): CU\w+_STATUS_"
        r"(?:INTERNAL_ERROR|NOT_INITIALIZED)|cuDNN failed to initialize|Blas \w+ launch failed",
    ),
    _symptom(
        "others",
        "device",
        "the GPU itself had no more memory: TensorFlow stayed below its limit, so another program, or another "
        "process of this one, holds the rest",
        r"failed to allocate [\d.]+ ?[KMGT]?(?:i?B)? \((?P<bytes>\d+) bytes\) from device"
        r"|on GPU:\d+ failed\. Status: out of memory",
    ),
    _symptom(
        "copy", "device", "a tensor found no room on its way to the device", r"Dst tensor is not initialized"
    ),
    _symptom(
        "device", "device", "the GPU ran out of memory", r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    ),
    _symptom(
        "batch",
        "host",
        "a batch of the input pipeline found no room",
        r"Failed to allocate memory for the batch of component",
    ),
    _symptom(
        "killed",
        "host",
        "the kernel's OOM killer ended the process",
        r"Out of memory: Killed process|[Mm]emory cgroup out of memory|oom-kill|OOMKilled|invoked oom-killer"
        r"|crashed after using all available RAM",
    ),
    _symptom(
        "array",
        "host",
        "the host had no room for an array or an object",
        rf"Unable to allocate {_SIZED} for an array|\bMemoryError\b|std::bad_alloc|Cannot allocate memory",
    ),
    _symptom(
        "killed",
        "host",
        "the process was killed (SIGKILL), most often by the kernel's OOM killer: the host or the container ran "
        "out of memory (`dmesg` or the container's log says so for certain)",
        r"(?m)^(?:\[\d+\][+-]?\s+(?:\d+ )?|.*: line \d+:\s+\d+ )?Killed(?:\s{2,}.*|: 9)?\s*$|\bSIGKILL\b"
        rf"|{_EXIT}(?:137|-9)\b",
    ),
    _symptom(
        "segfault",
        "unsure",
        "the process crashed (SIGSEGV); kernels that do not check their allocations do that when memory runs out, "
        "and so do broken installations",
        rf"\bSIGSEGV\b|Segmentation fault|{_EXIT}(?:139|-11)\b",
    ),
    _symptom(
        "exhausted",
        "device",
        "TensorFlow says that memory is exhausted, and no more",
        # gRPC uses the same word for messages and quotas that are too large.
        r"(?:ResourceExhaustedError|RESOURCE_EXHAUSTED|Resource exhausted)"
        r"(?![\s\S]{0,200}(?:larger than max|[Qq]uota))",
    ),
    _symptom(
        "warning",
        "none",
        "nothing failed: a faster algorithm did not get its workspace and a slower one was used; memory is tight",
        rf"trying to allocate {_SIZED}.*caller indicates that this is not a failure",
    ),
    _symptom(
        "warning",
        "none",
        "nothing failed yet: one piece took a large part of the host's memory",
        r"Allocation of (?P<bytes>\d+) exceeds 10% of (?:free )?system memory"
        r"|tcmalloc: large alloc (?P<bytes2>\d+) bytes",
    ),
)


def find_symptom(text: str) -> tuple[Symptom, Size | None] | None:
    """Returns the weightiest symptom in a text and the bytes it names (of the last such line), or None."""
    for symptom in SYMPTOMS:
        last = _last(symptom, text)
        if last is not None:
            return symptom, _size(last) or _size(_TRYING.search(text, last.start()))
    return None


def killed_at(text: str) -> int:
    """Returns where a text says that the process was killed, or -1."""
    matches = [_last(symptom, text) for symptom in SYMPTOMS if symptom.name == "killed"]
    return max((match.start() for match in matches if match is not None), default=-1)


def _last(symptom: Symptom, text: str) -> re.Match[str] | None:
    last = None
    for last in symptom.pattern.finditer(text):  # noqa: B007 (the last one is wanted)
        pass
    return last


def _size(match: re.Match[str] | None) -> Size | None:
    if match is None:
        return None
    groups = match.groupdict()
    exact = groups.get("bytes") or groups.get("bytes2")
    if exact:
        return Size(int(exact))
    if groups.get("size"):
        return read_size(groups["size"].rstrip("."), groups["unit"] or "")
    return None


_CUDNN_MEMORY = re.compile(r"Memory usage: (\d+) bytes free, (\d+) bytes total")
_KILLED_RSS = re.compile(r"anon-rss:(\d+)kB")


def device_memory(text: str) -> tuple[Size, Size] | None:
    """Returns free and total bytes of the GPU where cuDNN's error names them."""
    match = _CUDNN_MEMORY.search(text)
    return None if match is None else (Size(int(match[1])), Size(int(match[2])))


def killed_resident(text: str) -> Size | None:
    """Returns what a killed process held of the host's memory, where the kernel's line says it."""
    kibibytes = _KILLED_RSS.findall(text)
    return Size(int(kibibytes[-1]) * 1024) if kibibytes else None
