"""The search over recipes, with figures that can be added up by hand.

A step takes 100 bytes whatever the batch and 10 a sample. A sample of the inputs is 1 byte, and Keras's pipeline
holds five batches beside the step: at a batch of 64 stock takes 100 + 640 + 320. Gradients are 4 bytes.
"""

from dataclasses import replace

import keras
import pytest

from memfit import InvalidInput
from memfit.planning.candidates import Candidate
from memfit.planning.fidelity import Fidelity
from memfit.planning.levers.micro_batches import least_size, list_sizes
from memfit.planning.search import search_largest_batch, search_recipe
from memfit.steps.precision import MixedPrecision
from memfit.steps.recipe import Recipe
from planning.figures import Line, job_of, network, recordings_of, segments

WAITING = 5 * 64
STOCK = Line(100, 10)
HALF, QUARTER = segments(320, 0.1), segments(160, 0.2)
CHOICES = (HALF, QUARTER)
# Recordings that show just what was predicted.
LINES = {
    Recipe(): STOCK,
    Recipe(segments=HALF): Line(100, 5),
    Recipe(segments=QUARTER): Line(100, 10 - 480 / 64),
    Recipe(2): Line(104, 5),  # two parts of half of the batch each
    Recipe(2, HALF): Line(104, 3),
    Recipe(2, QUARTER): Line(104, 2),
}


def _search(
    memory: int, allow: str = "near", *, normalised: bool = True, on_host: bool = False
) -> Candidate | None:
    job = job_of(network(normalised=normalised), memory, allow, choices=CHOICES, on_host=on_host)
    return search_recipe(recordings_of(job, LINES), 64)


def test_the_least_recomputation_that_fits_is_taken() -> None:
    chosen = _search(739 + WAITING)
    assert chosen is not None
    assert chosen.recipe == Recipe(segments=HALF)
    assert (chosen.need, chosen.time) == (100 + 320 + WAITING, 1.1)


def test_an_exact_recipe_comes_before_a_faster_near_one() -> None:
    chosen = _search(300 + WAITING)
    assert chosen is not None
    assert (chosen.fidelity, chosen.recipe.segments) == (Fidelity.EXACT, QUARTER)


def test_a_less_faithful_recipe_is_taken_only_after_the_tightest_faithful_one_was_recorded() -> None:
    """Predictions said that no exact recipe fits; the recording of the tightest says that it does."""
    lines = {**LINES, Recipe(segments=QUARTER): Line(40, 2)}
    recorded: list[Recipe] = []
    job = job_of(network(), 200 + WAITING, choices=CHOICES)
    chosen = search_recipe(recordings_of(job, lines, recorded), 64)
    assert chosen is not None
    assert (chosen.fidelity, chosen.recipe) == (Fidelity.EXACT, Recipe(segments=QUARTER))
    assert recorded == [Recipe(), Recipe(segments=QUARTER)]


def test_what_is_predicted_to_be_far_beyond_the_memory_is_not_recorded() -> None:
    recorded: list[Recipe] = []
    heavy = {recipe: replace(line, fixed=line.fixed + 900) for recipe, line in LINES.items()}
    job = job_of(network(), 400, "exact", choices=CHOICES)
    assert search_recipe(recordings_of(job, heavy, recorded), 64) is None
    assert recorded == [Recipe()]


def test_where_micro_batches_are_exact_the_fastest_wins() -> None:
    chosen = _search(600 + WAITING, "exact", normalised=False)
    assert chosen is not None
    # Two parts of 32: 104 + 5 * 64 for the recorded step, and what waits.
    assert (chosen.recipe, chosen.need) == (Recipe(32), 104 + 320 + WAITING)
    assert chosen.time == pytest.approx(1.005)


def test_both_levers_together_go_lower_than_either() -> None:
    chosen = _search(215 + WAITING)
    assert chosen is not None
    assert chosen.recipe.micro_batch is not None
    assert chosen.need <= 215 + WAITING


def test_inputs_stay_on_the_host_where_that_is_enough() -> None:
    chosen = _search(740 + WAITING - 1, on_host=True)
    assert chosen is not None
    assert (chosen.recipe, chosen.need) == (Recipe(inputs_on_host=True), 740)


def test_precision_is_lowered_only_where_allowed_and_nothing_more_faithful_fits() -> None:
    in_16_bits = (MixedPrecision("mixed_bfloat16"),)
    lowered = {replace(r, changes=in_16_bits): replace(line, each=line.each / 2) for r, line in LINES.items()}

    def search(memory: int, allow: str) -> Candidate | None:
        job = job_of(network(), memory + WAITING, allow, choices=CHOICES)
        return search_recipe(recordings_of(job, LINES | lowered), 64)

    least = 104 + 2 * 8 + 56  # in micro-batches of 4, of a batch of which 56 samples wait
    assert search(least - 1, "near") is None
    chosen = search(least - 1, "precision")
    assert chosen is not None
    assert (chosen.fidelity, chosen.recipe.changes) == (Fidelity.PRECISION, in_16_bits)
    chosen = search(least, "precision")
    assert chosen is not None
    assert (chosen.fidelity, chosen.recipe.changes) == (Fidelity.NEAR, ())


def test_nothing_that_is_not_allowed_is_taken() -> None:
    assert _search(200 + WAITING, "exact") is None
    assert _search(50, "model") is None


def test_the_largest_batch_is_found_with_what_is_recorded() -> None:
    job = job_of(network(), 1000, "exact", batch_size="max", choices=CHOICES)
    batch_size, chosen = search_largest_batch(recordings_of(job, LINES))
    assert chosen is not None
    assert chosen.recipe == Recipe(segments=QUARTER)
    assert batch_size == pytest.approx(900 / 7.5, rel=0.02)  # 2.5 a sample, and 5 that wait


def test_micro_batch_sizes_fall_to_single_samples_without_repeats() -> None:
    assert list(list_sizes(64)) == [32, 22, 16, 11, 8, 6, 4, 3, 2, 1]
    assert list(list_sizes(1)) == []
    assert list(list_sizes(3)) == [2, 1]
    assert list(list_sizes(13, 4)) == [7, 5, 4]
    assert list(list_sizes(3, 4)) == []


def test_a_layer_that_normalises_over_samples_alone_keeps_some_of_them() -> None:
    def normalised(*shape: int) -> keras.Model:
        return keras.Sequential([keras.Input(shape), keras.layers.BatchNormalization()])

    assert least_size(normalised(8)) == 4
    assert least_size(normalised(5, 8)) == 1
    frozen = normalised(8)
    frozen.trainable = False
    assert least_size(frozen) == 1


def test_allow_is_read_by_name() -> None:
    assert Fidelity.read("near") is Fidelity.NEAR
    with pytest.raises(InvalidInput, match='one of "exact", "near"'):
        Fidelity.read("fast")
