"""A position in a training (call of fit(), epoch, batch) in words."""


def say_where(position: tuple[int, int, int] | None) -> str:
    """Says where a process was when it died."""
    if position is None:
        return "before the training began"
    call, epoch, batch = position
    place = f"epoch {epoch + 1}, batch {batch + 1}"
    return f"in fit() {call + 1}, {place}" if call else f"in {place}"


def say_from(position: tuple[int, int, int] | None) -> str:
    """Says where a new process goes on."""
    if position is None:
        return "from the beginning, as there was no checkpoint yet"
    call, epoch, batch = position
    place = f"after batch {batch} of epoch {epoch + 1}" if batch else f"at the beginning of epoch {epoch + 1}"
    return f"{place} of fit() {call + 1}" if call else place
