"""The arena's half against real TensorFlow; the GPU's half against a stand-in for `tf.config`: no GPU is here."""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import memfit
from memfit import InvalidInput, Size, TooLate, isolated
from memfit.budgets import configuration
from memfit.budgets.memory import Memory


def test_without_a_gpu_memory_puts_the_process_into_the_arena() -> None:
    def configured() -> tuple[str, int, int]:
        budget = memfit.configure(memory="150MiB")
        import tensorflow as tf

        kept = tf.zeros([2**20])
        free = memfit.budget().device.free
        del kept
        return budget.device.name, budget.device.total, free

    assert isolated(configured) == ("arena", 150 * 2**20, 146 * 2**20)


def test_after_tensorflows_import_it_is_too_late_unless_it_holds_already() -> None:
    def late(sizes: list[str]) -> list[str]:
        import tensorflow  # noqa: F401 - the import is what is tested

        said = []
        for size in sizes:
            try:
                memfit.configure(memory=size)
                said.append("fine")
            except TooLate as error:
                said.append(str(error))
        memfit.configure()  # growth: nothing to do without a GPU, and never too late
        return said

    same, other = isolated(late, ["150MiB", "200MiB"], memory="150MiB")
    assert same == "fine"
    assert "already been imported" in other
    assert "at the top of the program" in other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "10000GiB"}, "host's memory"),
        ({"memory": {0: "1GiB"}}, "no GPU:0"),
        ({"visible": [1]}, "no GPU:1"),
        ({"memory": "1GiB", "growth": True}, "growth=True"),
        ({"allocator": "jemalloc"}, '"bfc" or "async"'),
        ({"memory": "lots"}, "not a size"),
    ],
)
def test_impossible_values_are_refused_and_nothing_is_set(arguments: dict[str, Any], message: str) -> None:
    def refused(arguments: dict[str, Any]) -> tuple[str, bool]:
        before = dict(os.environ)
        try:
            memfit.configure(**arguments)
        except InvalidInput as error:
            return str(error), dict(os.environ) == before
        return "accepted", True

    said, unchanged = isolated(refused, arguments)
    assert message in said
    assert unchanged


class _Config:
    """As much of `tf.config` as `configure` uses, with TensorFlow's own rules about growth and limits."""

    def __init__(self, count: int) -> None:
        self.devices = [f"gpu{index}" for index in range(count)]
        self.growth: dict[str, bool] = {}
        self.limits: dict[str, int] = {}
        self.visible = list(self.devices)
        self.experimental = SimpleNamespace(set_memory_growth=self._set_growth)
        self.LogicalDeviceConfiguration = SimpleNamespace

    def list_physical_devices(self, kind: str) -> list[str]:
        return self.devices if kind == "GPU" else []

    def get_logical_device_configuration(self, device: str) -> list[Any] | None:
        return [SimpleNamespace(memory_limit=self.limits[device])] if device in self.limits else None

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        self.visible = devices

    def set_logical_device_configuration(self, device: str, logical: list[Any]) -> None:
        self.limits[device] = logical[0].memory_limit

    def _set_growth(self, device: str, on: bool) -> None:
        assert device not in self.limits, "TensorFlow raises here"
        self.growth[device] = on


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> _Config:
    cards = [Memory(f"GPU:{index} card", Size("8GiB"), Size("7GiB"), "NVML") for index in range(2)]
    tensorflow = ModuleType("tensorflow")
    config = _Config(2)
    tensorflow.config = config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setattr(configuration, "gpus", lambda: cards)
    monkeypatch.setattr(configuration, "is_initialised", lambda: False)
    return config


def test_growth_is_the_default_for_every_gpu(two_gpus: _Config) -> None:
    memfit.configure()
    assert two_gpus.growth == {"gpu0": True, "gpu1": True}


def test_limits_are_set_for_every_gpu_or_per_gpu(two_gpus: _Config) -> None:
    memfit.configure(memory="50%")
    assert two_gpus.limits == {"gpu0": 4096, "gpu1": 4096}
    memfit.configure(memory={0: "6GiB", 1: "512MiB"})
    assert two_gpus.limits == {"gpu0": 6144, "gpu1": 512}
    assert two_gpus.growth == {}


def test_only_visible_gpus_need_a_limit(two_gpus: _Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_GPU_ALLOCATOR", raising=False)
    memfit.configure(memory={1: "4GiB"}, visible=[1], allocator="async")
    assert two_gpus.visible == ["gpu1"]
    assert two_gpus.limits == {"gpu1": 4096}
    assert os.environ.pop("TF_GPU_ALLOCATOR") == "cuda_malloc_async"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "9GiB"}, "GPU:0 has 8.00 GiB in total"),
        ({"memory": {0: "1GiB", 1: "9GiB"}}, "GPU:1 has"),
        ({"memory": {0: "1GiB"}}, "not GPU:1"),
        ({"memory": {0: "1GiB", 1: "1GiB", 5: "1GiB"}}, "GPU:5"),
        ({"visible": [2]}, "no GPU:2"),
        ({"memory": {0: "1KiB", 1: "1GiB"}}, "at least 1 MiB"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused_by_name(
    two_gpus: _Config, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        memfit.configure(**arguments)
    assert two_gpus.limits == {}
    assert two_gpus.growth == {}


def test_growth_beside_an_existing_limit_is_refused(two_gpus: _Config) -> None:
    two_gpus.limits["gpu1"] = 100
    with pytest.raises(InvalidInput, match="GPU:1 already has a fixed limit"):
        memfit.configure()


def test_after_the_gpus_are_initialised_it_is_too_late(
    two_gpus: _Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "is_initialised", lambda: True)
    with pytest.raises(TooLate, match="already initialised its GPUs"):
        memfit.configure(memory="1GiB")
