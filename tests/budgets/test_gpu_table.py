"""The table of GPUs."""

import pytest

from memfit.budgets.gpu_table import gpu, gpus
from memfit.errors import InvalidInput


@pytest.mark.parametrize("name", ["RTX 3060", "rtx3060", "NVIDIA GeForce RTX 3060", "RTX-3060"])
def test_a_card_is_found_however_it_is_written(name):
    assert gpu(name).mib == 12288


def test_less_than_all_of_a_card_is_usable():
    assert all(0 < card.usable < card.mib * 2**20 for card in gpus())


def test_an_unknown_card_gets_the_nearest_suggested():
    with pytest.raises(InvalidInput, match="RTX 3060"):
        gpu("RTX 3065")


def test_a_name_that_fits_several_cards_names_them():
    with pytest.raises(InvalidInput, match="A100 40GB, A100 80GB"):
        gpu("A100")
