"""How a diagnosis looks on the terminal."""

from rich.console import Console
from rich.markup import escape

from memfit.budgets.diagnosis import Diagnosis
from memfit.tables import table

_MARKS = {3: "[bold red]✗[/]", 2: "[yellow]![/]", 1: "[cyan]i[/]"}


def print_diagnosis(diagnosis: Diagnosis, screen: Console) -> None:
    """Prints one screen: what is there, how it is set, and what to change."""
    screen.print("[bold]Memory[/]")
    screen.print(escape(repr(diagnosis.budget)))
    screen.print("\n[bold]Software[/]")
    screen.print(escape(table(_list_settings(diagnosis))))
    if diagnosis.environment:
        screen.print("\n[bold]Environment[/]")
        screen.print(escape(table([[name, value] for name, value in diagnosis.environment.items()])))
    screen.print("\n[bold]Findings[/]")
    if not diagnosis.findings:
        screen.print("[green]✓[/] No problems found.")
    for finding in diagnosis.findings:
        screen.print(f"{_MARKS[finding.weight]} {escape(finding.what)}")
        screen.print(f"    [bold]{escape(finding.do)}[/]")


def _list_settings(diagnosis: Diagnosis) -> list[list[str]]:
    return [
        ["TensorFlow", diagnosis.tensorflow or "not installed"],
        ["Keras", f"{diagnosis.keras or 'not installed'} ({diagnosis.backend} backend)"],
        ["GPU memory", diagnosis.growth],
        ["allocator", diagnosis.allocator],
        ["XLA", diagnosis.xla],
    ]
