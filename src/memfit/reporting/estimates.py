"""What `memfit estimate` says below an estimate's own table: other phases, whether it fits, what to run next."""

from memfit.estimation.estimate import Estimate
from memfit.sizes import Size


def describe_phases(estimate: Estimate) -> str:
    """Returns the peaks of validation and prediction, a line each."""
    others = (estimate.validate, estimate.predict)
    return "\n".join(f"{other.phase}: peak {other.peak}, needs {other.needed}" for other in others)


def describe_fit(estimate: Estimate, memory: Size, largest: int, device: str | None) -> str:
    """Returns whether a training fits.

    Args:
        estimate: The estimate.
        memory: What it has to fit into.
        largest: The largest batch that fits.
        device: The GPU whose memory it is, where one was named.
    """
    where = f"{device} ({memory} usable)" if device else str(memory)
    verdict = "fits" if estimate.fits(memory) else "does not fit"
    return f"{where}: batch {estimate.batch_size} {verdict}; largest batch that fits: {largest}"


def write_size(memory: int) -> str:
    """Returns a size as one types it, exact in whole GiB or rounded down to MiB: "8GiB", "300MiB"."""
    gibibytes, rest = divmod(memory, 2**30)
    return f"{memory // 2**20}MiB" if rest else f"{gibibytes}GiB"
