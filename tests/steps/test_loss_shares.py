"""The shares of micro-batches add up to the loss of the batch, whatever is masked, weighted or reduced."""

from itertools import pairwise

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.steps.micro_batches.loss_shares import DivisorShare, LossShare
from memfit.steps.micro_batches.samples import Fraction

REDUCTIONS = ["sum", "sum_over_batch_size", "mean", "mean_with_sample_weight"]


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], list[int]]:
    """A batch of sequences with a mask and weights, and where it is cut."""
    samples = draw(st.integers(1, 12))
    length = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch = {
        "y_true": rng.normal(size=(samples, length, 2)).astype("float32"),
        "y_pred": rng.normal(size=(samples, length, 2)).astype("float32"),
    }
    if draw(st.booleans()):
        batch["mask"] = rng.random((samples, length)) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    weights = draw(st.sampled_from(["none", "sample", "step", "zero"]))
    if weights != "none":
        shape = (samples, length) if weights == "step" else (samples, 1)
        batch["weight"] = rng.uniform(0, 2, shape).astype("float32") * (weights != "zero")
    cuts = draw(st.lists(st.integers(1, samples), max_size=3, unique=True))
    return batch, sorted({0, *cuts, samples})


def masked(batch: dict[str, np.ndarray]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    y_pred = tf.constant(batch["y_pred"])
    if "mask" in batch:
        y_pred._keras_mask = tf.constant(batch["mask"])
    return tf.constant(batch["y_true"]), y_pred, batch.get("weight")


@settings(deadline=None, max_examples=150)
@given(batches(), st.sampled_from(REDUCTIONS))
def test_shares_add_up_to_the_loss_of_the_batch(
    case: tuple[dict[str, np.ndarray], list[int]], reduction: str
) -> None:
    batch, cuts = case
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    whole = loss(*masked(batch))
    parts = [{k: v[a:b] for k, v in batch.items()} for a, b in pairwise(cuts)]
    counts = [DivisorShare(loss) for _ in parts]
    for count, part in zip(counts, parts, strict=True):
        count(*masked(part))
    divisor = sum(count.noted for count in counts)
    shares = [
        LossShare(loss, Fraction(len(part["y_true"]), len(batch["y_true"])), divisor)(*masked(part))
        for part in parts
    ]
    np.testing.assert_allclose(sum(shares), whole, rtol=2e-5, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from(["sum", "sum_over_batch_size", "mean"]))
def test_without_a_mask_nothing_has_to_be_counted_first(
    case: tuple[dict[str, np.ndarray], list[int]], reduction: str
) -> None:
    batch, cuts = case
    batch.pop("mask", None)
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    shares = [
        LossShare(loss, Fraction(b - a, cuts[-1]))(*masked({k: v[a:b] for k, v in batch.items()}))
        for a, b in pairwise(cuts)
    ]
    np.testing.assert_allclose(sum(shares), loss(*masked(batch)), rtol=2e-5, atol=1e-6)
