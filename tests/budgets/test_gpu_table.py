"""The table of GPUs."""

import pytest

from memfit.budgets.gpu_table import gpu, known_gpus
from memfit.errors import InvalidInput


@pytest.mark.parametrize("name", ["RTX 3060", "rtx3060", "NVIDIA GeForce RTX 3060", "RTX-3060"])
def test_a_card_is_found_however_it_is_written(name: str) -> None:
    assert gpu(name).mib == 12288


def test_less_than_all_of_a_card_is_usable() -> None:
    assert all(0 < card.usable < card.mib * 2**20 for card in known_gpus())


def test_an_unknown_card_gets_the_nearest_suggested() -> None:
    with pytest.raises(InvalidInput, match="RTX 3060"):
        gpu("RTX 3065")


def test_a_name_that_fits_several_cards_names_them() -> None:
    with pytest.raises(InvalidInput, match="A100 40GB, A100 80GB"):
        gpu("A100")


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("Tesla V100-SXM2-16GB", "Tesla V100 16GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla P100-PCIE-16GB", "Tesla P100"),
        ("NVIDIA RTX A6000", "RTX A6000"),
    ],
)
def test_the_drivers_names_are_found_too(name: str, card: str) -> None:
    assert gpu(name).name == card


def test_a_card_with_another_memory_is_not_taken_for_its_namesake() -> None:
    with pytest.raises(InvalidInput, match="RTX 3080"):
        gpu("RTX 3080 12GB")


@pytest.mark.parametrize(
    ("spelling", "supported"),
    [
        ("t4", False),
        ("Tesla T4", False),
        ("rtx 2080 ti", False),
        ("RTX2080Ti", False),
        ("v100 16gb", False),
        ("Tesla V100-SXM2-32GB", False),
        ("P40", False),
        ("K80", False),
        ("gtx-1080", False),
        ("A100 40GB", True),
        ("rtx 3060", True),
        ("NVIDIA GeForce RTX 4090", True),
        ("l4", True),
        ("h100", True),
        ("rtx 5070", True),
    ],
)
def test_bfloat16_is_told_by_the_card_and_not_by_its_spelling(spelling: str, supported: bool) -> None:
    assert gpu(spelling).bfloat16 is supported
