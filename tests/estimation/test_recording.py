"""What is read out of the events of a recorded step."""

from memfit.estimation.recording.record import _folded
from memfit.estimation.recording.trace import Event


def test_constants_of_a_first_call_are_those_that_no_run_of_an_op_asked_for_and_that_stay():
    def event(address: int, op: str, region: str = "", shape: str = "", *, freed: bool = False) -> Event:
        return Event(address, 1024, 1024, op, region, shape, freed)

    events = (
        event(1, "clip_by_value/zeros_like"),
        event(2, "moments/__cf__1", "output", "[8,4]"),
        event(3, "conv/Conv2D", "output", "[8,32]"),
        event(4, "adam/AssignAddVariableOp", "temp", "[3,3]"),
        event(5, "loss/Const"),
        event(6, ""),
        event(3, "", freed=True),
        event(5, "", freed=True),
    )
    assert [kept.op for kept in _folded(events)] == ["clip_by_value/zeros_like", "moments/__cf__1"]
