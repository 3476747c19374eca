"""Common GPUs and the memory a program can use on them."""

import difflib
from dataclasses import dataclass

from memfit.budgets.device_specs import Specs, all_specs, user_folder
from memfit.errors import InvalidInput
from memfit.sizes import Size

_MIB = 2**20
# What a CUDA context with cuDNN and cuBLAS loaded takes before the first tensor: a guess, meant to be on the safe
# side. There was no GPU here to measure it on, and no source was checked.
CONTEXT = 800 * _MIB
# Convolutions on a GPU pick their algorithm, and its workspace, on the device: cuDNN is allowed 4 GiB by
# TensorFlow's default, and takes far less for common shapes. A guess, shown as one.
_WORKSPACE_PART = 0.05


@dataclass(frozen=True)
class GPU:
    """A GPU model: its name, the MiB of memory its driver reports, and what it is made of where that is known."""

    name: str
    mib: int
    specs: Specs | None = None

    @property
    def usable(self) -> Size:
        """Memory left for tensors once the CUDA context is there."""
        return Size(self.mib * _MIB - CONTEXT)

    def workspace_guess(self, peak: int) -> int:
        """A guess of the kernels' workspace at a peak of that size."""
        return int(peak * _WORKSPACE_PART)


# GPUs of which only the memory is known here, as nvidia-smi shows it; from memory, not read off the cards. Those
# that can be compiled for have a file in devices/.
_MIB_OF = {
    "GTX 1060": 6144,
    "GTX 1070": 8192,
    "GTX 1080": 8192,
    "GTX 1080 Ti": 11264,
    "GTX 1650": 4096,
    "GTX 1660": 6144,
    "GTX 1660 Ti": 6144,
    "RTX 2060": 6144,
    "RTX 2070": 8192,
    "RTX 2080": 8192,
    "RTX 3050": 8192,
    "RTX 3060 Ti": 8192,
    "RTX 3070": 8192,
    "RTX 3070 Ti": 8192,
    "RTX 3080 Ti": 12288,
    "RTX 3090 Ti": 24564,
    "RTX 4060": 8188,
    "RTX 4060 Ti": 8188,
    "RTX 4070 Ti": 12282,
    "RTX 5060": 8151,
    "RTX 5070": 12227,
    "RTX 5080": 16303,
    "RTX 4000 Ada": 20475,
    "RTX 6000 Ada": 49140,
    "RTX A4000": 16376,
    "RTX A5000": 24564,
    "RTX A6000": 49140,
    "Tesla K80": 11441,
    "Tesla P4": 7611,
    "Tesla P40": 22919,
    "Tesla P100": 16276,
    "A10": 23028,
    "A16": 15356,
    "A30": 24576,
    "A40": 46068,
    "L40": 46068,
}


def gpus() -> tuple[GPU, ...]:
    """Returns all GPUs that are known, those with specifications first; a user's file goes before memfit's own."""
    described = {_plain(specs.name): GPU(specs.name, specs.memory_mib, specs) for specs in all_specs()}
    return (
        *described.values(),
        *(GPU(name, mib) for name, mib in _MIB_OF.items() if _plain(name) not in described),
    )


def gpu(name: str) -> GPU:
    """Returns the GPU of that name.

    Raises:
        InvalidInput: If there is none in the table; it suggests the nearest.
    """
    known = {_plain(card.name): card for card in gpus()}
    plain = _plain(name)
    if plain in known:
        return known[plain]
    ends = [card for key, card in known.items() if key.endswith(plain) or key.startswith(plain)]
    if len(ends) == 1 and plain:
        return ends[0]
    near = [known[key].name for key in difflib.get_close_matches(plain, known, n=3, cutoff=0.4)]
    near = [card.name for card in ends] or near
    suggestion = f"Did you mean {', '.join(near)}? Otherwise" if near else "See `memfit devices`, or"
    raise InvalidInput(
        "That GPU is not in memfit's table",
        received=name,
        remedy=f'{suggestion} add it as a file in {user_folder()}, or give its memory, such as "8GiB"',
    )


def nearest(card: GPU) -> str | None:
    """Returns the described GPU of another compute capability that is most like one: by capability, then memory."""
    if card.specs is None:
        return None
    own = float(card.specs.compute_capability)
    others = [
        (abs(float(other.specs.compute_capability) - own), abs(other.mib - card.mib), other.name)
        for other in gpus()
        if other.specs is not None and float(other.specs.compute_capability) != own
    ]
    return min(others)[2] if others else None


def _plain(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in {"nvidia", "geforce", "tesla", "gpu"})
