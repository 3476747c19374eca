"""What of the data a rank reads: its share alone where shares can be told before anything is read."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from memfit.compat import keras_data
from memfit.data.pipeline import pipeline_of


@contextmanager
def reading_shares(
    arguments: Mapping[str, Any], rank: int, count: int
) -> Iterator[tuple[set[str], str | None]]:
    """Lets memfit's own pipelines give a rank's share of every batch, for a while; arrays are read by number.

    Args:
        arguments: Of `fit`, by name.

    Yields:
        The phases whose batches are shares already, and what other data costs.
    """
    shared: set[str] = set()
    costs = None
    with ExitStack() as stack:
        for phase, data in (("training", arguments["x"]), ("validation", arguments["validation_data"])):
            pipeline = pipeline_of(data)
            if pipeline is not None and pipeline.shareable:
                if stack.enter_context(pipeline.order.sharing(rank, count)):
                    shared.add(phase)
            elif phase == "training" and keras_data.batches_itself(data):
                costs = (
                    f"Every rank reads whole batches and takes its share of each: what comes before, such as "
                    f"decoding, is done {count} times. Read by shares are arrays, memfit.arrays, and memfit.images "
                    "without augmentation."
                )
        yield shared, costs
