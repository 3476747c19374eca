"""Against values as NVML gives them: there is no NVIDIA driver on the machines these tests run on."""

from types import SimpleNamespace
from typing import Any

import pytest

from memfit.budgets.nvml import GpuProcess, gpu_processes, gpus
from memfit.sizes import Size

MIB = 2**20
# As `nvmlDeviceGetMemoryInfo` gives them for two cards of different size.
CARDS = [
    ("NVIDIA A10G", "GPU-aaaa1111-0000", 23028 * MIB, 22500 * MIB),
    ("NVIDIA GeForce RTX 3060", "GPU-bbbb2222-0000", 12288 * MIB, 6000 * MIB),
]

# As `nvmlDeviceGetComputeRunningProcesses` gives them; inside of a container the driver may not tell the bytes.
PROCESSES = {
    "NVIDIA A10G": [SimpleNamespace(pid=700, usedGpuMemory=3000 * MIB)],
    "NVIDIA GeForce RTX 3060": [SimpleNamespace(pid=800, usedGpuMemory=None)],
}


class _Error(Exception):
    pass


def _library(*, driver: bool = True, as_bytes: bool = False) -> Any:
    def init() -> None:
        if not driver:
            raise _Error("NVML Shared Library Not Found")

    def text(value: str) -> str | bytes:
        return value.encode() if as_bytes else value

    return SimpleNamespace(
        NVMLError=_Error,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(CARDS),
        nvmlDeviceGetHandleByIndex=lambda index: CARDS[index],
        nvmlDeviceGetUUID=lambda card: text(card[1]),
        nvmlDeviceGetName=lambda card: text(card[0]),
        nvmlDeviceGetMemoryInfo=lambda card: SimpleNamespace(total=card[2], free=card[3]),
        nvmlDeviceGetComputeRunningProcesses=lambda card: PROCESSES[card[0]],
    )


@pytest.mark.parametrize("as_bytes", [False, True])
def test_each_card_has_its_total_free_and_source(as_bytes: bool) -> None:
    first, second = gpus({}, _library(as_bytes=as_bytes))
    assert (first.name, first.total, first.free) == ("GPU:0 NVIDIA A10G", 23028 * MIB, 22500 * MIB)
    assert (second.name, second.source) == ("GPU:1 NVIDIA GeForce RTX 3060", "NVML")


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("1,0", ["GPU:0 NVIDIA GeForce RTX 3060", "GPU:1 NVIDIA A10G"]),
        ("GPU-bbbb", ["GPU:0 NVIDIA GeForce RTX 3060"]),
        ("0,7,1", ["GPU:0 NVIDIA A10G"]),
        ("-1", []),
        ("", []),
    ],
)
def test_cuda_visible_devices_chooses_and_orders_as_cuda_does(setting: str, names: list[str]) -> None:
    assert [gpu.name for gpu in gpus({"CUDA_VISIBLE_DEVICES": setting}, _library())] == names


def test_no_driver_is_no_gpu() -> None:
    assert gpus({}, _library(driver=False)) == []


def test_the_real_library_is_asked_by_default() -> None:
    assert isinstance(gpus(), list)


def test_the_processes_of_every_card_are_listed_whatever_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_processes(_library()) == [
        GpuProcess(700, "GPU:0 NVIDIA A10G", Size(3000 * MIB)),
        GpuProcess(800, "GPU:1 NVIDIA GeForce RTX 3060", None),
    ]
    assert gpu_processes(_library(driver=False)) == []
