"""How a run went, in a headline and a few sentences, for the top of a report."""

from dataclasses import dataclass

from memfit.planning.fidelity import Fidelity
from memfit.reporting.runs import count_times, describe_seconds, describe_uncounted, is_exact
from memfit.survival.flags import as_flags
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
    says = as_typed(record, record.says)
    if state == records.REFUSED and not record.steps:
        return Verdict(
            "bad", "Refused: nothing was trained", tuple(filter(None, (says, _tell_closest(record))))
        )
    headline = f"{word} after {describe_seconds(record.seconds)}{_tell_peak(record)}"
    notes, inexact = _tell_events(record), _tell_fidelity(record)
    sentences = [says if state != records.FINISHED else "", _tell_prediction(record), *inexact, *notes]
    if state in (records.FINISHED, records.RUNNING):
        level = "warn" if notes or inexact else "good"
    else:
        level = "warn" if state == records.INTERRUPTED else "bad"
    return Verdict(level, headline, tuple(filter(None, sentences)))


def as_typed(record: RunRecord, says: str) -> str:
    """Returns a sentence with its advice as one follows it: as flags where a command ran the script."""
    return as_flags(says) if record.command == "memfit run" else says


def _tell_closest(record: RunRecord) -> str:
    plan = record.plan
    if plan is None:
        return ""
    closest = f"The closest allowed plan takes {plan.predicted} of {plan.memory} (predicted)"
    return f"Stock Keras would take {plan.stock}. {closest}; it is shown below."


def _tell_peak(record: RunRecord) -> str:
    if record.device_peak is None:
        return ""
    budget = "" if record.memory is None else f" of {record.memory}"
    return f": peak {record.device_peak}{budget} on {record.device or 'the device'}"


def _tell_prediction(record: RunRecord) -> str:
    plan = record.plan
    if plan is None:
        told = "Nothing was predicted: there was no plan."
    elif plan.is_bound:
        told = f"Predicted: at most {plan.predicted}, a bound from the layers' shapes."
    else:
        told = f"Predicted peak: {plan.predicted}."
    if record.device_peak is None:
        return f"{told} Not measured: {describe_uncounted(record)}."
    if plan is None or plan.is_bound:
        return told
    off = record.device_peak / plan.predicted - 1
    told = f"Predicted {plan.predicted}, measured {record.device_peak} ({off:+.1%})."
    return told if plan.changes_nothing else f"{told} Stock Keras would have taken {plan.stock} (predicted)."


def _tell_fidelity(record: RunRecord) -> list[str]:
    plan = record.plan
    if plan is not None and plan.fidelity != Fidelity.EXACT:
        return [f"Not exact ({plan.fidelity}): {_FIDELITIES[plan.fidelity]}."]
    if is_exact(record):
        return []
    return ["Not exact: what was done when memory ran out changed the mathematics, see the events."]


def _tell_events(record: RunRecord) -> list[str]:
    shortages, deaths = len(record.of_kind("out of memory")), len(record.of_kind("death"))
    told = []
    if shortages:
        told.append(f"Memory ran out {count_times(shortages)}: the events below say what was done.")
    if deaths or record.restarts:
        died, again = count_times(deaths or record.restarts), count_times(record.restarts)
        told.append(f"The process died {died}, and was started again {again}.")
    return told
