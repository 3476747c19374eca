"""Ranks read their shares alone, and together just what one device reads."""

import numpy as np
import pytest

import memfit
from memfit.scaling.reading import reading_shares


def _batches(data, rank: int, count: int) -> tuple[list[list[int]], set[str], str | None]:
    arguments = {"x": data, "validation_data": None}
    with reading_shares(arguments, rank, count) as (shared, costs):
        return [batch.numpy().tolist() for batch in data], shared, costs


@pytest.mark.parametrize("count", [2, 3])
def test_the_shares_of_all_ranks_are_the_batches_of_one_device(count: int) -> None:
    whole = [
        batch.numpy().tolist() for batch in memfit.arrays(np.arange(23), batch_size=7, shuffle=True, seed=5)
    ]
    ranks = []
    for rank in range(count):
        data = memfit.arrays(np.arange(23), batch_size=7, shuffle=True, seed=5)
        batches, shared, costs = _batches(data, rank, count)
        assert shared == ({"training"} if count == 2 else set())  # the last batch has 2 samples
        assert costs is None
        ranks.append(batches)
    if count == 2:
        assert [[*first, *second] for first, second in zip(*ranks, strict=True)] == whole
        assert {len(batch) for batch in ranks[0]} == {4, 1}
    else:
        assert all(batches == whole for batches in ranks)  # the step takes the share


def test_rows_of_other_ranks_are_not_read() -> None:
    class Rows:
        shape, dtype = (20, 2), np.dtype("float32")

        def __init__(self) -> None:
            self.read: list[int] = []

        def __getitem__(self, numbers):
            self.read.extend(np.atleast_1d(numbers).tolist())
            return np.zeros((len(numbers), 2), "float32")

    rows = Rows()
    data = memfit.arrays(rows, batch_size=10)
    rows.read.clear()
    with reading_shares({"x": data, "validation_data": None}, 1, 2):
        assert len(list(data)) == 2
    assert sorted(rows.read) == [5, 6, 7, 8, 9, 15, 16, 17, 18, 19]


def test_what_other_datasets_cost_is_said() -> None:
    import tensorflow as tf

    data = tf.data.Dataset.range(8).batch(4)
    with reading_shares({"x": data, "validation_data": None}, 0, 4) as (shared, costs):
        assert not shared
        assert costs is not None
        assert "is done 4 times" in costs
