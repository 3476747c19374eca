import memfit
from memfit import isolated
from memfit.budgets.releasing import Release

MIB = 2**20


def test_garbage_comes_back_and_what_is_still_named_stays() -> None:
    def clears() -> tuple[Release, Release]:
        nothing_ran = memfit.release()
        import keras  # noqa: F401 - a session to clear
        import tensorflow as tf

        kept = tf.zeros([8 * MIB // 4])
        cycle: list[object] = [tf.zeros([32 * MIB // 4])]
        cycle.append(cycle)
        del cycle
        report = memfit.release()
        assert kept.shape[0] > 0
        return nothing_ran, report

    nothing_ran, report = isolated(clears, memory="500MiB")
    assert nothing_ran.device is None
    assert report.device == "CPU:0"
    assert report.device_before >= 40 * MIB
    assert 8 * MIB <= report.device_after < 9 * MIB
    assert report.device_kept >= 32 * MIB
    assert "only ending the process returns" in repr(report)
    assert report.to_json()["device_after"] == report.device_after


def test_the_process_of_a_training_gives_everything_back_when_it_ends() -> None:
    def trains() -> Release:
        import keras
        import numpy as np

        model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(2048), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(np.zeros((8, 1024), "float32"), np.zeros((8, 1), "float32"), verbose=0)
        del model
        return memfit.release()

    def resident() -> int:
        return int(memfit.release().host_after)

    before = resident()
    report = isolated(trains, memory="500MiB")
    # 2M float32 weights with two Adam slots are 24 MiB.
    assert report.device_before > 20 * MIB
    assert resident() < before + 8 * MIB
