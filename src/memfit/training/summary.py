"""What a person has to know before a training starts, in at most eight lines."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import LeverRow, Plan

_MOST_LEVERS = 4  # with the job, stock's peak, the plan and the warning they make eight lines
_SLOW_PLAN = 2.0  # seconds of planning that are worth a word


class Line(NamedTuple):
    """A line for a person; a strong one is shown in bold where there is bold."""

    text: str
    strong: bool = False


def summarise(
    plan: Plan,
    model_name: str,
    arguments: Mapping[str, Any],
    *,
    call: int = 0,
    asked: bool,
    seconds: float,
) -> list[Line]:
    """Describes a job and its plan.

    Args:
        arguments: Keras's arguments.
        call: Which call of fit() of a script it is, counted from 0.
        asked: Whether the memory was asked for; otherwise it is what is free.
        seconds: How long planning took.
    """
    epochs = arguments["epochs"] - arguments["initial_epoch"]
    source = "" if asked else " (free now)"
    job = f"{model_name}, batch {plan.batch}, {epochs} epoch{'s' * (epochs != 1)}"
    number = f" {call + 1}" if call else ""
    head = f"fit(){number}: {job}, in {plan.memory}{source}"
    return describe_plan(plan, head, "stock Keras", seconds=seconds)


def describe_plan(plan: Plan, head: str, plain: str, *, seconds: float) -> list[Line]:
    """Describes a plan below a line that says what it is for.

    Args:
        plain: What the step is called that no lever changes.
    """
    lines = [Line(head)]
    known = "at most" if plan.is_bound else "predicted"
    stock = f"{plain}: peak {plan.stock} ({known})"
    used = [lever for lever in plan.levers if lever.used]
    if not used:
        return [*lines, Line(f"{stock}; fits, nothing is changed")]
    fits = "does not fit" if plan.stock > plan.memory else "does not fit with its margin"
    if plan.recipe.immediate_update:
        fits = "fits, if no gradients are kept for a rollback"
    lines.append(Line(f"{stock}; {fits}"))
    took = f"; took {seconds:.0f} s" if seconds >= _SLOW_PLAN else ""
    lines.append(
        Line(f"plan: {plan.fidelity}, peak {plan.predicted}, {plan.time:.2f}x stock's time (predicted){took}")
    )
    return [*lines, *_describe_levers(used), *_describe_shapes(plan), *_warn(plan, used)]


def _describe_levers(used: Sequence[LeverRow]) -> list[Line]:
    lines = [Line(f"  {_describe(lever)}") for lever in used[: _MOST_LEVERS - (len(used) > _MOST_LEVERS)]]
    if len(used) > _MOST_LEVERS:
        lines.append(Line(f"  and {', '.join(lever.name for lever in used[len(lines) :])}"))
    return lines


def _describe_shapes(plan: Plan) -> list[Line]:
    """The batch that needs most, where shapes vary, and which others are computed as it is."""
    if plan.worst is None:
        return []
    rest = plan.ordinary
    others = "" if rest is None else f"; {rest.share:.2%} of the batches in {rest.recipe}"
    return [Line(f"{plan.worst}{others}")]


def _describe(lever: LeverRow) -> str:
    setting = f" {lever.setting}" if lever.setting else ""
    effects = [
        str(lever.fidelity),
        f"-{lever.saving}" if lever.saving else "",
        f"+{lever.cost:.0%} time" if lever.cost and round(100 * lever.cost) else "",
    ]
    return f"{lever.name}{':' * bool(setting)}{setting} ({', '.join(filter(None, effects))})"


def _warn(plan: Plan, used: Sequence[LeverRow]) -> list[Line]:
    """The one line in bold: what is not as in stock Keras, and how not to have it."""
    if plan.fidelity == Fidelity.EXACT:
        return []
    changed = "; ".join(lever.why for lever in used if lever.fidelity != Fidelity.EXACT)
    return [Line(f'NOT EXACT: {changed}. To refuse that: allow="exact"', strong=True)]
