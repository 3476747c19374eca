"""The other ways in which a text says that memory ran out: drivers, libraries, compilers, kernels of the system."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from memfit.oom.allocator import read_size
from memfit.sizes import Size

_PARTS = {
    "{size}": r"(?P<size>[\d.]+) ?(?P<unit>[KMGT]?)(?:i?B)?",
    "{exit}": r"exit(?:ed)?(?: with)?(?: |-)?(?:code|status)[ :=]*",
}
_CUDNN_MEMORY = re.compile(r"Memory usage: (\d+) bytes free, (\d+) bytes total")
_KILLED_RSS = re.compile(r"anon-rss:(\d+)kB")


@dataclass(frozen=True)
class Symptom:
    """A line that tells of memory, as `symptoms.toml` describes it."""

    name: str
    where: str
    says: str
    patterns: tuple[re.Pattern[str], ...]

    def find_last(self, text: str) -> re.Match[str] | None:
        """Returns where a text has it last."""
        matches = [match for pattern in self.patterns for match in pattern.finditer(text)]
        return max(matches, key=lambda match: match.start(), default=None)


def _compile(pattern: str) -> re.Pattern[str]:
    for name, part in _PARTS.items():
        pattern = pattern.replace(name, part)
    return re.compile(pattern, re.MULTILINE)


_TRYING = _compile("trying to allocate {size}")
SYMPTOMS = tuple(
    Symptom(row["name"], row["where"], row["says"], tuple(map(_compile, row["patterns"])))
    for row in tomllib.loads(Path(__file__).with_name("symptoms.toml").read_text())["symptom"]
)


def find_symptom(text: str) -> tuple[Symptom, Size | None] | None:
    """Returns the weightiest symptom in a text and the bytes it names (of the last such line), or None."""
    for symptom in SYMPTOMS:
        last = symptom.find_last(text)
        if last is not None:
            return symptom, _size(last) or _size(_TRYING.search(text, last.start()))
    return None


def killed_at(text: str) -> int:
    """Returns where a text says that the process was killed, or -1."""
    matches = [symptom.find_last(text) for symptom in SYMPTOMS if symptom.name == "killed"]
    return max((match.start() for match in matches if match is not None), default=-1)


def _size(match: re.Match[str] | None) -> Size | None:
    groups = {} if match is None else match.groupdict()
    if groups.get("bytes"):
        return Size(int(groups["bytes"]))
    if groups.get("size"):
        return read_size(groups["size"].rstrip("."), groups["unit"] or "")
    return None


def device_memory(text: str) -> tuple[Size, Size] | None:
    """Returns free and total bytes of the GPU where cuDNN's error names them."""
    match = _CUDNN_MEMORY.search(text)
    return None if match is None else (Size(int(match[1])), Size(int(match[2])))


def killed_resident(text: str) -> Size | None:
    """Returns what a killed process held of the host's memory, where the kernel's line says it."""
    kibibytes = _KILLED_RSS.findall(text)
    return Size(int(kibibytes[-1]) * 1024) if kibibytes else None
