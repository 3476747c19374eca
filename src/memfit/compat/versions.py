"""Which versions of Keras and TensorFlow the private names were checked with, and what is installed."""

import os
import platform
import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

# From the first version to the one that is no longer known; pyproject.toml has the same bounds.
SUPPORTED = {"Keras": ("3.12", "3.16"), "TensorFlow": ("2.19", "2.22")}
_PACKAGES = {"Keras": ("keras",), "TensorFlow": ("tensorflow", "tensorflow-cpu", "tf-nightly")}
# Set for the processes that memfit starts: one sentence is enough for all of them.
_TOLD = "MEMFIT_VERSIONS_TOLD"


def warn_of_unsupported_versions() -> None:
    """Warns, once for a process and those it starts, where Keras or TensorFlow is older or newer than supported."""
    unsupported = [] if _TOLD in os.environ else [name for name in SUPPORTED if not _is_supported(name)]
    if not unsupported:
        return
    os.environ[_TOLD] = "1"
    installed = " and ".join(f"{name} {installed_version(name)}" for name in unsupported)
    wanted = " ".join(f"'{name.lower()}>={SUPPORTED[name][0]},<{SUPPORTED[name][1]}'" for name in unsupported)
    warnings.warn(
        f"memfit was not tested with {installed}, and uses private APIs that may differ there. "
        f"Install a tested version: pip install {wanted}",
        UserWarning,
        stacklevel=2,
    )


def read_versions() -> dict[str, str]:
    """Returns the versions of Python, memfit and what it stands on, as far as they are installed."""
    versions = {"python": platform.python_version()}
    for package in ("memfit", "keras", "tensorflow", "tensorflow-cpu", "numpy"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _is_supported(name: str) -> bool:
    installed = installed_version(name)
    if installed is None:  # what needs it will say so
        return True
    least, beyond = SUPPORTED[name]
    return release_of(least) <= release_of(installed) < release_of(beyond)


def installed_version(name: str) -> str | None:
    """Returns the version of "Keras" or "TensorFlow" that is installed, or None."""
    for package in _PACKAGES[name]:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def release_of(text: str) -> tuple[int, int]:
    """Returns the first two numbers of a version: a release candidate of 2.22 counts as 2.22."""
    major, minor = text.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)))
