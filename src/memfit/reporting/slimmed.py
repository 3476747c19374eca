"""What `memfit slim` says below its table: the command that makes a variant."""

from memfit.slimming.slimmed import ORIGINAL, Slimmed


def describe_next(table: Slimmed, target: str) -> str:
    """Returns the command that writes a variant: the first that fits, or the one with the lowest peak."""
    made = [row for row in table.rows if row.make and row.peak is not None and row.name != ORIGINAL]
    chosen = next((row for row in made if row.fits), None)
    if chosen is None:
        chosen = min(made, key=lambda row: row.peak.value if row.peak else 0.0, default=None)
    if chosen is None:
        return ""
    name = f'"{chosen.name}"' if " " in chosen.name else chosen.name
    if target.endswith(".py"):
        return f"to train one: model = memfit.slim(model, {chosen.name!r}) before fit() in {target}"
    return f"to write one: memfit slim {target} --variant {name} --output small.keras"
