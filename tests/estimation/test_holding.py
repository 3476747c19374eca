"""Whose value a buffer holds that outlives its step."""

from memfit.estimation.recording.trace import Event
from memfit.estimation.replay.holding import Holding, match_remade_state


def _event(op: str, size: int = 512, address: int = 0, *, freed: bool = False) -> Event:
    return Event(address, size, size, op, "", "", freed)


def test_an_op_moves_the_same_variable_in_every_step():
    holding = Holding()
    for first in (2, 4):
        holding.begin_step()
        holding.born(first, _event("adam/AssignSubVariableOp_1"))
        holding.born(first + 1, _event("adam/AssignSubVariableOp_2"))
    assert holding.of_all(6)[2:] == (2, 3, 2, 3)


def test_a_variable_whose_first_buffer_dies_is_the_one_that_a_new_op_of_that_size_has_moved():
    holding = Holding()
    holding.begin_step()
    holding.born(2, _event("adam/AssignSubVariableOp_1", 1024))
    holding.born(3, _event("adam/AssignSubVariableOp_2", 512))
    holding.died(0, _event("", 512, freed=True))
    assert holding.of_all(4) == (3, 1, 2, 3)


def test_an_optimizers_state_that_is_made_anew_has_the_buffers_it_had():
    alive = {7: 30}
    start = (_event("", address=1), _event("", address=2), _event("", address=7, freed=True))
    match_remade_state(start, [10, 11], alive)
    assert alive == {1: 10, 2: 11}
