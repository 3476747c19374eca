"""The GPU that is planned for is the one that is here; its driver is made up, because there is none."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from memfit.budgets.gpu_table import find_gpu, gpu, present_gpu
from memfit.errors import InvalidInput

MIB = 2**20


def install_driver(patch: pytest.MonkeyPatch, *cards: tuple[str, int, tuple[int, int]]) -> None:
    """Installs a driver of cards, each a name, its MiB and its compute capability."""

    def memory(index: int) -> Any:
        return SimpleNamespace(total=cards[index][1] * MIB, free=cards[index][1] * MIB)

    library = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetName=lambda index: cards[index][0],
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetCudaComputeCapability=lambda index: cards[index][2],
    )
    patch.setitem(sys.modules, "pynvml", library)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_without_a_gpu_there_is_none() -> None:
    assert present_gpu() is None


def test_the_first_card_is_looked_up_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(
        monkeypatch, ("NVIDIA GeForce RTX 3060", 12288, (8, 6)), ("NVIDIA A100-SXM4-40GB", 40960, (8, 0))
    )
    assert present_gpu() == gpu("RTX 3060")
    assert find_gpu(None) == gpu("RTX 3060")
    assert find_gpu("t4") == gpu("T4")


def test_of_an_unknown_card_the_driver_tells_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(monkeypatch, ("NVIDIA Future 9000", 65536, (13, 0)))
    card = present_gpu()
    assert card is not None
    assert (card.name, card.mib, card.compute_capability, card.specs) == (
        "NVIDIA Future 9000",
        65536,
        "13.0",
        None,
    )
    assert card.bfloat16


def test_a_hidden_card_is_not_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(monkeypatch, ("Tesla T4", 15360, (7, 5)))
    assert present_gpu() == gpu("T4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert present_gpu() is None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not in memfit's table"):
        find_gpu("no such card")
