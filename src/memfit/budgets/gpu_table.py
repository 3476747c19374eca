"""Common GPUs and the memory a program can use on them; and which of them is in this machine."""

import difflib
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memfit.budgets.device_specs import Specs, all_specs, has_bfloat16, user_folder
from memfit.budgets.nvml import compute_capabilities, gpus
from memfit.errors import InvalidInput
from memfit.sizes import Size

_MIB = 2**20
_MEMORY_ONLY = Path(__file__).with_name("memory_only_gpus.toml")
# Words in the driver's names that tell cards of one name and memory apart, such as "Tesla V100-SXM2-16GB".
_VARIANT = re.compile(r"nvidia|geforce|tesla|gpu|sxm\d?|pcie|hbm\w*")
_MEMORY_WORD = re.compile(r"(\d+)gb")
# What a CUDA context with cuDNN and cuBLAS loaded takes before the first tensor: a guess, meant to be on the safe
# side. There was no GPU here to measure it on, and no source was checked.
CONTEXT = 800 * _MIB
# Convolutions on a GPU pick their algorithm, and its workspace, on the device: cuDNN is allowed 4 GiB by
# TensorFlow's default, and takes far less for common shapes. A guess, shown as one.
_WORKSPACE_PART = 0.05


@dataclass(frozen=True)
class GPU:
    """A GPU model.

    Attributes:
        name: What people call it.
        mib: The MiB of memory that its driver reports.
        compute_capability: Such as "8.6".
        specs: Its specifications, where they are known.
    """

    name: str
    mib: int
    compute_capability: str
    specs: Specs | None = None

    @property
    def bfloat16(self) -> bool:
        """Whether its tensor cores multiply bfloat16."""
        return has_bfloat16(self.compute_capability)

    @property
    def usable(self) -> Size:
        """Memory left for tensors once the CUDA context is there."""
        return Size(self.mib * _MIB - CONTEXT)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return {
            "name": self.name,
            "memory_mib": self.mib,
            "compute_capability": self.compute_capability,
            "specs": None if self.specs is None else asdict(self.specs),
        }

    def workspace_guess(self, peak: int) -> int:
        """A guess of the kernels' workspace at a peak of that size."""
        return int(peak * _WORKSPACE_PART)


def known_gpus() -> tuple[GPU, ...]:
    """Returns all GPUs in the table, those with specifications first; a user's file goes before memfit's own."""
    specified = {
        _key(specs.name): GPU(specs.name, specs.memory_mib, specs.compute_capability, specs)
        for specs in all_specs()
    }
    others = (
        GPU(name, card["memory_mib"], card["compute_capability"])
        for name, card in tomllib.loads(_MEMORY_ONLY.read_text()).items()
    )
    return (*specified.values(), *(card for card in others if _key(card.name) not in specified))


def gpu(name: str) -> GPU:
    """Returns the GPU of that name, in any usual spelling: "t4", "RTX-3060", "Tesla V100-SXM2-16GB".

    Raises:
        InvalidInput: If the table has no such GPU, or several; it suggests the nearest.
    """
    known = {_key(card.name): card for card in known_gpus()}
    key = _key(name)
    if key in known:
        return known[key]
    matches = [card for other, card in known.items() if other.endswith(key) or other.startswith(key)]
    matches = matches or _match_with_memory(name, known)
    if len(matches) == 1 and key:
        return matches[0]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
    suggested = [card.name for card in matches] or [known[other].name for other in close]
    suggestion = (
        f"Did you mean {', '.join(suggested)}? Otherwise" if suggested else "See `memfit devices`, or"
    )
    raise InvalidInput(
        "That GPU is not in memfit's table",
        received=name,
        remedy=f'{suggestion} add it as a file in {user_folder()}, or give its memory, such as "8GiB"',
    )


def present_gpu() -> GPU | None:
    """Returns the first GPU that TensorFlow would use in this process; None where there is none.

    Of a card that is not in the table only what its driver says is known.
    """
    present = gpus()
    if not present:
        return None
    name = present[0].name.removeprefix("GPU:0 ")
    try:
        return gpu(name)
    except InvalidInput:
        return GPU(name, present[0].total // _MIB, compute_capabilities()[0])


def find_gpu(device: str | None) -> GPU | None:
    """Returns the GPU of that name, which need not be here, or the one that is here; None for a CPU.

    Raises:
        InvalidInput: If the table has no such GPU.
    """
    return present_gpu() if device is None else gpu(device)


def nearest(card: GPU) -> str | None:
    """Returns the described GPU of another compute capability that is most like one: by capability, then memory."""
    if card.specs is None:
        return None
    own = float(card.specs.compute_capability)
    others = [
        (abs(float(other.specs.compute_capability) - own), abs(other.mib - card.mib), other.name)
        for other in known_gpus()
        if other.specs is not None and float(other.specs.compute_capability) != own
    ]
    return min(others)[2] if others else None


def _match_with_memory(name: str, known: dict[str, GPU]) -> list[GPU]:
    """Returns the card that a name with its memory means, such as "H100 80GB", if it has that much."""
    *words, last = _words(name) or [""]
    gigabytes = _MEMORY_WORD.fullmatch(last)
    card = known.get("".join(words))
    if (
        gigabytes is None
        or card is None
        or abs(card.mib / 1024 - int(gigabytes[1])) > 0.1 * int(gigabytes[1])
    ):
        return []
    return [card]


def _key(name: str) -> str:
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_-]+", name.lower()) if word and not _VARIANT.fullmatch(word)]
