import memfit
from memfit import isolated
from memfit.budgets.releasing import Release
from prepared import in_arena

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


def test_a_deleted_model_is_really_gone_and_others_go_on() -> None:
    def clears() -> tuple[int, Release, Release]:
        import gc

        import keras
        import numpy as np
        import tensorflow as tf

        x, y = np.zeros((8, 1024), "float32"), np.zeros((8, 1), "float32")

        def trained() -> keras.Model:
            layers = [keras.layers.Dense(2048, activation="swish"), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((1024,)), *layers])
            model.compile(keras.optimizers.Adam(clipnorm=1.0), "mse")
            model.fit(x, y, verbose=0)
            return model

        kept = trained()
        traced = tf.function(kept.call)  # its gradient is built only after the release
        traced(x)
        trained()
        keras.backend.clear_session()
        gc.collect()
        stock_way = tf.config.experimental.get_memory_info("CPU:0")["current"]
        report = memfit.release()
        kept.fit(x, y, verbose=0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(traced(x))
        assert all(gradient is not None for gradient in tape.gradient(loss, kept.trainable_variables))
        del kept, traced, tape, loss
        return stock_way, report, memfit.release()

    stock_way, report, at_the_end = in_arena(clears, memory="500MiB")
    # Weights and two Adam slots of one model: 3 x 8 MiB.
    assert report.device_after < stock_way - 20 * MIB
    assert 20 * MIB < report.device_after < 30 * MIB
    assert at_the_end.device_after < 2 * MIB
