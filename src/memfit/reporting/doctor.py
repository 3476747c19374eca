"""How a diagnosis looks on the terminal."""

from rich.console import Console
from rich.markup import escape

from memfit.budgets.diagnosis import Diagnosis
from memfit.tables import table

_MARKS = {3: "[bold red]✗[/]", 2: "[yellow]![/]", 1: "[cyan]i[/]"}


def print_diagnosis(seen: Diagnosis, screen: Console) -> None:
    """Prints one screen: what is there, how it is set, and what to change."""
    screen.print("[bold]Memory[/]")
    screen.print(escape(repr(seen.budget)))
    screen.print("\n[bold]Software[/]")
    screen.print(escape(table(_settings(seen))))
    if seen.environment:
        screen.print("\n[bold]Environment[/]")
        screen.print(escape(table([[name, value] for name, value in seen.environment.items()])))
    screen.print("\n[bold]Findings[/]")
    if not seen.findings:
        screen.print("[green]✓[/] Nothing stands in the way of a training.")
    for finding in seen.findings:
        screen.print(f"{_MARKS[finding.weight]} {escape(finding.what)}")
        screen.print(f"    [bold]{escape(finding.do)}[/]")


def _settings(seen: Diagnosis) -> list[list[str]]:
    return [
        ["TensorFlow", seen.tensorflow or "not installed"],
        ["Keras", f"{seen.keras or 'not installed'} ({seen.backend} backend)"],
        ["GPU memory", seen.growth],
        ["allocator", seen.allocator],
        ["XLA", seen.xla],
    ]
