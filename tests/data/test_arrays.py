"""Arrays: what Keras would train on, without a second copy of them."""

import h5py
import keras
import numpy as np
import pytest

import memfit


def trained_weights(data, **arguments):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    model.fit(*data, epochs=2, shuffle=False, verbose=0, **arguments)
    return model.get_weights()


def test_training_gives_the_weights_that_keras_gives_on_the_arrays():
    random = np.random.default_rng(0)
    x, y, w = random.normal(size=(50, 6)), random.normal(size=(50, 1)), random.uniform(size=50)
    stock = trained_weights((x, y), batch_size=8, sample_weight=w)
    ours = trained_weights((memfit.arrays(x, y, w, batch_size=8),))
    for expected, got in zip(stock, ours, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_batches_have_the_structure_and_types_that_keras_expects():
    x = {"a": np.zeros((5, 2)), "b": [np.zeros((5, 3), np.uint8), np.zeros(5, "U3")]}
    (first, _) = memfit.arrays(x, np.arange(5), batch_size=3)
    (inputs, targets) = first
    assert inputs["a"].dtype == "float32"
    assert [part.dtype.name for part in inputs["b"]] == ["uint8", "string"]
    assert targets.numpy().tolist() == [0, 1, 2]
    assert memfit.arrays(np.zeros((5, 2)), batch_size=3).element_spec.shape.as_list() == [None, 2]


def test_every_epoch_is_shuffled_by_the_seed_and_can_be_resumed():
    def made(seed=3, **more):
        return memfit.arrays(np.arange(20), batch_size=6, shuffle=True, seed=seed, **more)

    def epochs(dataset, count):
        return [[batch.numpy().tolist() for batch in dataset] for _ in range(count)]

    first = epochs(made(), 3)
    assert [sorted(sum(epoch, [])) for epoch in first] == [list(range(20))] * 3  # noqa: RUF017
    assert first[0] != first[1] != first[2]
    assert first == epochs(made(), 3) != epochs(made(seed=4), 3)
    assert epochs(made().memfit.resume(1, 2), 2) == [first[1][2:], first[2]]
    assert epochs(made().memfit.resume(0, 4), 1) == [first[1]]
    halves = [epochs(made(shard=(index, 2)), 1)[0] for index in range(2)]
    assert sorted(sum((sum(half, []) for half in halves), [])) == list(range(20))  # noqa: RUF017


def test_hdf5_and_other_sliceable_arrays_are_read_in_batches(tmp_path):
    reads = []

    class Zarr:
        """What Zarr arrays look like from outside."""

        shape, dtype = (40, 2), np.dtype("float64")

        def __getitem__(self, rows):
            reads.append(len(rows))
            return np.stack([rows, rows], axis=1).astype("float64")

    with h5py.File(tmp_path / "x.h5", "w") as file:
        stored = file.create_dataset("x", data=np.arange(40))
        for images, numbers in memfit.arrays(Zarr(), stored, batch_size=7, shuffle=True, seed=1):
            assert images[:, 0].numpy().tolist() == numbers.numpy().tolist()
    assert reads == [7, 7, 7, 7, 7, 5]


def test_wrong_arrays_are_named():
    with pytest.raises(memfit.InvalidInput, match="same number of rows"):
        memfit.arrays(np.zeros(3), np.zeros(4))
    with pytest.raises(memfit.InvalidInput, match="at least one"):
        memfit.arrays(np.zeros((0, 3)))
    with pytest.raises(memfit.InvalidInput, match="need targets"):
        memfit.arrays(np.zeros(3), sample_weight=np.zeros(3))
    with pytest.raises(memfit.InvalidInput, match="batches, counted from 0"):
        memfit.arrays(np.zeros(3)).memfit.resume(0, 5)


def growth_of_fit(path):
    """How far `fit` raises the process's peak memory, in parts of the array: mapped, loaded, stock Keras."""
    import re
    from pathlib import Path

    import keras
    import numpy as np

    import memfit

    def peak():
        # Not `ru_maxrss`: a new process begins with its parent's.
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024

    def fit(x, y, way):
        before = peak()
        if way == "stock":
            model.fit(x, y, batch_size=32, epochs=1, verbose=0)
        else:
            data = memfit.arrays(x, y, batch_size=32, shuffle=True)
            model.fit(data, epochs=1, verbose=0, shuffle=False)
        return (peak() - before) / x.nbytes

    mapped = np.load(path, mmap_mode="r")
    y = np.zeros((len(mapped), 1), np.float32)
    model = keras.Sequential([keras.Input((mapped.shape[1],)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    fit(mapped[:64].copy(), y[:64], "memfit")  # what Keras and TensorFlow take once
    growth = {"mapped": fit(mapped, y, "memfit")}
    x = np.load(path)
    return growth | {"memfit": fit(x, y, "memfit"), "stock": fit(x, y, "stock")}


def test_fit_takes_no_second_copy_of_an_array_and_does_not_keep_a_mapped_one(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((4096, 16384), np.float32))  # 256 MiB
    growth = memfit.isolated(growth_of_fit, path)
    assert growth["mapped"] < 0.5
    assert growth["memfit"] < 0.15
    assert growth["stock"] > 0.8


def test_fit_plans_for_the_batches_of_memfits_own_data():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = memfit.arrays(np.ones((24, 4), np.float32), np.ones((24, 1), np.float32), batch_size=8)
    run = memfit.fit(model, data.map(lambda x, y: (2 * x, y)), memory="1GiB", verbose=0, shuffle=False).memory
    assert run.plan is not None
    assert run.plan.batch_size == 8
