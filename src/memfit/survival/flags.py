"""Advice for people on the command line: memfit's arguments in Python, written as flags."""

import re

_ARGUMENTS = (
    (re.compile(r"""allow=["'](\w+)["']"""), r"--allow \1"),
    (re.compile(r"""memory=["']([\d.]+ ?\w+%?)["']"""), r"--memory \1"),
    (re.compile(r"\bor allow near\b"), "or give --allow near"),
)


def as_flags(text: str) -> str:
    """Returns a sentence with `allow="near"` as `--allow near`, and `memory='8GiB'` as `--memory 8GiB`.

    Example:
        >>> as_flags('With allow="precision" this batch would fit.')
        'With --allow precision this batch would fit.'
    """
    for pattern, flag in _ARGUMENTS:
        text = pattern.sub(flag, text)
    return text
