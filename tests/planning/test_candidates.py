"""The search over settings, with figures that can be added up by hand."""

from dataclasses import replace

import keras
import pytest

from memfit import InvalidInput, Size
from memfit.planning.candidates import Candidate, Figures, Way, best, candidates, predicted_saving
from memfit.planning.fidelity import Fidelity
from memfit.planning.levers.micro_batches import least, sizes
from memfit.steps.rematerialisation import Segments


def _need(way: Way, size: int) -> int:
    """100 bytes whatever the batch, 10 a sample; a copy of the gradients, 20, where there are parts."""
    saved = 0 if way.segments is None else predicted_saving(way.segments, size)
    return 100 + 10 * size - saved + (20 if way.in_parts else 0)


# Inputs of 1 byte a sample, and none waiting.
FIGURES = Figures(
    need=_need,
    activations=lambda batch: 9 * batch,
    inputs=1,
    waiting=lambda batch: 0,
    fixed_time=lambda batch: 0.64 / batch,
)


def _segments(activation_bytes: int, recomputed: float) -> Segments:
    return Segments(64, (), (), Size(640), Size(activation_bytes), recomputed)


FRONT = [_segments(320, 0.1), _segments(160, 0.2)]


def _best(memory: int, allow: Fidelity, micro: Fidelity = Fidelity.NEAR) -> Candidate | None:
    return best(list(candidates(FIGURES, 64, list(sizes(64)), micro, FRONT)), memory, allow)


def test_a_job_that_fits_is_left_as_it_is() -> None:
    found = _best(740, Fidelity.NEAR)
    assert found == Candidate(Fidelity.EXACT, 740, 1.0)


def test_the_least_recomputation_that_fits_is_taken() -> None:
    found = _best(739, Fidelity.NEAR)
    assert found is not None
    assert found.segments == FRONT[0]
    assert (found.peak, found.time) == (420, 1.1)


def test_an_exact_plan_comes_before_a_faster_near_one() -> None:
    found = _best(300, Fidelity.NEAR)
    assert found is not None
    assert (found.fidelity, found.segments) == (Fidelity.EXACT, FRONT[1])


def test_where_micro_batches_are_exact_the_fastest_wins() -> None:
    found = _best(600, Fidelity.EXACT, micro=Fidelity.EXACT)
    assert found is not None
    # Two parts of 32: 100 + 320 for the pass, 20 for the gradients, 32 for the inputs that wait.
    assert (found.micro_batch, found.segments, found.peak, found.time) == (32, None, 472, 1.01)


def test_both_levers_together_go_lower_than_either() -> None:
    found = _best(215, Fidelity.NEAR)
    assert found is not None
    assert found.micro_batch is not None
    assert found.peak <= 215


def test_inputs_stay_on_the_host_where_anything_has_to_change() -> None:
    figures = replace(FIGURES, waiting=lambda batch: 5 * batch, host_inputs=True)
    found = list(candidates(figures, 64, list(sizes(64)), Fidelity.NEAR, FRONT))
    stock = best(found, 740 + 5 * 64, Fidelity.NEAR)
    assert stock == Candidate(Fidelity.EXACT, 740 + 5 * 64, 1.0)
    least = best(found, 740 + 5 * 64 - 1, Fidelity.NEAR)
    assert least is not None
    assert (least.inputs_on_host, least.segments, least.peak) == (True, None, 740)
    # Neither waiting batches nor the rest of the batch count any more: only the part that is computed.
    parts = next(candidate for candidate in found if candidate.way == Way(None, True))
    assert (parts.micro_batch, parts.peak) == (32, 100 + 320 + 20)


def test_of_two_that_are_as_fast_the_one_that_changes_less_is_taken() -> None:
    # In three parts it fits without segments; with some that cost next to nothing, two parts would do.
    front = [_segments(560, 0.001)]
    found = list(candidates(FIGURES, 64, list(sizes(64)), Fidelity.EXACT, front))
    assert min(c.time for c in found if c.peak <= 465 and c.micro_batch) < 1.012
    chosen = best(found, 465, Fidelity.EXACT)
    assert chosen is not None
    assert (chosen.micro_batch, chosen.segments) == (22, None)


def test_precision_is_lowered_only_where_allowed_and_nothing_more_faithful_fits() -> None:
    found = list(candidates(FIGURES, 64, [], Fidelity.NEAR, FRONT, "mixed_bfloat16"))
    assert best(found, 230, Fidelity.NEAR) is None
    lowered = best(found, 230, Fidelity.PRECISION)
    assert lowered is not None
    assert lowered.precision == "mixed_bfloat16"
    faithful = best(found, 300, Fidelity.PRECISION)
    assert faithful is not None
    assert faithful.precision is None


def test_nothing_that_is_not_allowed_is_taken() -> None:
    assert _best(200, Fidelity.EXACT) is None
    assert _best(50, Fidelity.MODEL) is None


def test_micro_batch_sizes_fall_to_single_samples_without_repeats() -> None:
    assert list(sizes(64)) == [32, 22, 16, 11, 8, 6, 4, 3, 2, 1]
    assert list(sizes(1)) == []
    assert list(sizes(3)) == [2, 1]
    assert list(sizes(13, 4)) == [7, 5, 4]
    assert list(sizes(3, 4)) == []


def test_a_layer_that_normalises_over_samples_alone_keeps_some_of_them() -> None:
    def normalised(*shape: int) -> keras.Model:
        return keras.Sequential([keras.Input(shape), keras.layers.BatchNormalization()])

    assert least(normalised(8)) == 4
    assert least(normalised(5, 8)) == 1
    frozen = normalised(8)
    frozen.trainable = False
    assert least(frozen) == 1


def test_allow_is_read_by_name() -> None:
    assert Fidelity.read("near") is Fidelity.NEAR
    with pytest.raises(InvalidInput, match='one of "exact", "near"'):
        Fidelity.read("fast")
