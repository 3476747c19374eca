"""Plain aligned tables: what `repr` of a memfit object shows, in every room and on any terminal."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[object]], *, head: Sequence[str] = (), right: Sequence[int] = ()) -> str:
    """Returns rows as aligned text.

    Args:
        rows: The cells; every row has the same number of them.
        head: The columns' names, underlined; none for a table without a head.
        right: Indices of the columns aligned to the right (figures).

    Example:
        >>> print(table([["weights", "98 MiB"], ["activations", "1.20 GiB"]], right=[1]))
        weights        98 MiB
        activations  1.20 GiB
    """
    cells = [[str(cell) for cell in row] for row in ([head, *rows] if head else rows)]
    if not cells:
        return ""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    if head:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
