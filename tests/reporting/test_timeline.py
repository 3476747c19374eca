"""The page with the timeline of a step."""

from pathlib import Path

import keras
import pytest

import memfit


def test_the_plot_is_one_file_that_opens_offline_with_the_budget_in_it(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(256, name="body"), keras.layers.Dense(4, name="head")]
    )
    model.compile("adam", "mse")
    estimated = memfit.estimate(model, batch_size=64)
    file = memfit.plot(estimated, tmp_path / "peak.html", memory="64MiB")
    page = file.read_text()
    assert "<script src=" not in page
    assert "activations" in page
    assert ">body</div>" in page
    assert "budget 64 MiB" in page
    assert f"peak {estimated.peak}" in page


def test_what_has_no_timeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(memfit.InvalidInput, match="Only an estimate has a timeline"):
        memfit.plot(memfit.budget(), tmp_path / "peak.html")
    assert not list(tmp_path.iterdir())
