"""What `memfit plan` says below a plan's own table: the line that trains with it."""

from pathlib import Path

from memfit.planning.plan import Plan
from memfit.reporting.estimates import write_size


def describe_use(plan: Plan, file: Path | None) -> str:
    """Returns the line that trains with a plan: Python, where it may have been saved, or a command for ranks."""
    if plan.ranks > 1:
        sharded = any(lever.used and lever.name == "sharded optimizer" for lever in plan.levers)
        flags = f"--ranks {plan.ranks} --memory {write_size(plan.memory)}" + " --shard-optimizer" * sharded
        return f"to train with it: memfit run {flags} train.py"
    if file is not None:
        use = f"plan=memfit.Plan.load({str(file)!r})"
    else:
        use = f"batch_size={plan.batch_size}, memory={write_size(plan.memory)!r}"
    return f"to train with it: memfit.fit(model, ..., {use})"
