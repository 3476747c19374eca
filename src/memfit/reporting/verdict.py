"""How a run went, in a headline and a few sentences, for the top of a report."""

from dataclasses import dataclass

from memfit.planning.fidelity import Fidelity
from memfit.reporting.runs import describe_seconds
from memfit.training.records import record as records
from memfit.training.records.record import RunRecord

_HEADLINES = {
    records.FINISHED: "Finished",
    records.RUNNING: "Still running",
    records.REFUSED: "Refused",
    records.OUT_OF_MEMORY: "Out of memory",
    records.INTERRUPTED: "Interrupted",
    records.FAILED: "Failed",
    records.DIED: "Died",
}
_FIDELITIES = {
    Fidelity.NEAR: "batch statistics were taken over fewer samples",
    Fidelity.PRECISION: "other number formats or another optimizer were used",
    Fidelity.MODEL: "another network was trained",
}


@dataclass(frozen=True)
class Verdict:
    """How a run went.

    Attributes:
        level: "good", "warn" or "bad".
        headline: In a few words.
        sentences: What is to be known first.
    """

    level: str
    headline: str
    sentences: tuple[str, ...]


def judge(record: RunRecord) -> Verdict:
    """Says how a run went."""
    state = record.state
    word = _HEADLINES.get(state, state)
    took = f"{word} after {describe_seconds(record.seconds)}" if state != records.REFUSED else word
    headline = f"{took}{_tell_peak(record)}"
    notes = _tell_events(record)
    inexact = _tell_fidelity(record)
    sentences = [record.says if state != records.FINISHED else "", _tell_prediction(record), *inexact, *notes]
    if state in (records.FINISHED, records.RUNNING):
        level = "warn" if notes or inexact else "good"
    else:
        level = "warn" if state == records.INTERRUPTED else "bad"
    return Verdict(level, headline, tuple(filter(None, sentences)))


def _tell_peak(record: RunRecord) -> str:
    if record.device_peak is None:
        return ""
    budget = "" if record.memory is None else f" of {record.memory}"
    return f": peak {record.device_peak}{budget} on {record.device or 'the device'}"


def _tell_prediction(record: RunRecord) -> str:
    plan = record.plan
    if plan is None:
        return "No prediction: no plan was made."
    if plan.is_bound:
        return f"The prediction was a bound: at most {plan.predicted}."
    if record.device_peak is None:
        return f"Predicted peak {plan.predicted}; the device's allocator did not measure any."
    off = record.device_peak / plan.predicted - 1
    told = f"Predicted {plan.predicted}, measured {record.device_peak} ({off:+.1%})."
    return told if plan.changes_nothing else f"{told} Stock Keras would have taken {plan.stock} (predicted)."


def _tell_fidelity(record: RunRecord) -> list[str]:
    plan = record.plan
    if plan is None or plan.fidelity == Fidelity.EXACT:
        return []
    return [f"Not exact ({plan.fidelity}): {_FIDELITIES[plan.fidelity]}."]


def _tell_events(record: RunRecord) -> list[str]:
    shortages, deaths = len(record.of_kind("out of memory")), len(record.of_kind("death"))
    told = []
    if shortages:
        told.append(f"Memory ran out {_times(shortages)}: the events below say what was done.")
    if deaths or record.restarts:
        died, again = _times(deaths or record.restarts), _times(record.restarts)
        told.append(f"The process died {died}, and was started again {again}.")
    return told


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"
