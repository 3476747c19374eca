"""Whether a plan turned out as predicted, once some steps have run on the device."""

from memfit.planning.plan import Plan
from memfit.sizes import Size


def judge(plan: Plan, measured: int) -> str | None:
    """Says that a plan turned out too tight or too loose, and what to do about it; None where it did not.

    What was measured corrects what was predicted for stock Keras: both are off by the same part.

    Args:
        measured: The peak on the device, in bytes.
    """
    if plan.is_bound or not (plan.predicted and measured):
        return None
    off = measured / plan.predicted
    told = f"{Size(measured)} measured, {plan.predicted} predicted ({off - 1:+.0%})"
    if measured > plan.memory:
        less = Size(int(plan.memory / off))
        return f"The plan is too tight: {told}. Make it with memory={str(less).replace(' ', '')!r} instead."
    margin = plan.margin / plan.predicted
    stock = Size(int(off * plan.stock))
    if not plan.recipe.is_stock and stock * (1 + margin) <= plan.memory:
        more = Size(int(plan.memory / off))
        return (
            f"The plan is too loose: {told}. Stock Keras would take about {stock} of {plan.memory}: "
            f"make it with memory={str(more).replace(' ', '')!r}."
        )
    return None
