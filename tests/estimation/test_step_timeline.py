"""The predicted memory of a step as small plain data."""

import json

import keras

import memfit
from memfit.estimation.step_timeline import StepTimeline, timeline_of


def test_a_timeline_adds_up_is_small_and_is_read_as_it_was_written() -> None:
    layers = [keras.layers.Dense(256, name="wide"), keras.layers.Dense(4, name="head")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile("adam", "mse", jit_compile=False)
    estimated = memfit.estimate(model, batch_size=512)
    timeline = timeline_of(estimated)
    assert timeline.peak == estimated.peak == sum(timeline.breakdown.values())
    assert "activations" in timeline.kinds
    sums = [sum(row) for row in timeline.sums]
    assert max(sums) == sums[timeline.top]
    assert 0.9 < sums[timeline.top] / timeline.peak < 1.1
    assert len(sums) == len(timeline.positions) <= 402
    assert ("wide", "activations") in {(share.layer, share.kind) for share in timeline.shares}
    at_peak = timeline.positions[timeline.top]
    for tensor in timeline.largest:
        assert 0.0 <= tensor.born <= at_peak + 0.01
        assert at_peak - 0.01 <= tensor.freed <= 1.0
    assert any(tensor.born > 0 and tensor.freed < 1 for tensor in timeline.largest)
    text = json.dumps(timeline.to_json())
    assert len(text) < 60_000
    assert StepTimeline.from_json(json.loads(text)) == timeline
