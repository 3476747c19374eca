import memfit
from memfit import Budget, isolated


def test_outside_of_an_arena_the_device_is_the_host() -> None:
    budget = isolated(memfit.budget)
    if not budget.devices:
        assert budget.device == budget.host
    assert budget.host.source.startswith(("/proc/meminfo", "cgroup"))


def test_in_the_arena_the_cap_counts_and_tensorflows_allocator_says_what_is_free() -> None:
    def looks() -> tuple[Budget, Budget]:
        first = memfit.budget()
        import tensorflow as tf

        kept = tf.zeros([2**20])
        second = memfit.budget()
        del kept
        return first, second

    first, second = isolated(looks, memory="64MiB")
    assert (first.device.total, first.device.free) == (64 * 2**20, 64 * 2**20)
    assert first.device.source == "arena's cap"
    assert second.device.free == 60 * 2**20
    assert "TensorFlow's allocator" in second.device.source


def test_its_repr_is_a_table_and_its_json_is_bytes() -> None:
    budget = memfit.budget()
    assert repr(budget).splitlines()[0].split() == ["memory", "total", "free", "source"]
    assert budget.to_json()["host"]["total"] == int(budget.host.total)
