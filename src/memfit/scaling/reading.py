"""What of the data a rank reads: its share alone where shares can be told before anything is decoded."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from memfit.compat import keras_data, tf_datasets
from memfit.data.pipeline import pipeline_of
from memfit.data.shares import CannotCut, find_cut
from memfit.training.batches import count_data

_ARGUMENTS = {"training": "x", "validation": "validation_data"}


@dataclass
class Reading:
    """How a rank reads the data of one call of `fit`.

    Attributes:
        shares: The phases whose batches are this rank's share already.
        remarks: What is read or computed on every rank, and why.
    """

    shares: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    _datasets: dict[str, Any] = field(default_factory=dict)

    def replace(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of `fit` with datasets that give this rank's share of every batch."""
        return {**arguments, **{_ARGUMENTS[phase]: cut for phase, cut in self._datasets.items()}}

    def cut(self, phase: str, dataset: Any, rank: int, count: int) -> None:
        """Cuts a tf.data pipeline as early as it allows."""
        try:
            cut = find_cut(dataset)
        except CannotCut as reason:
            self.read_whole(phase, str(reason), count)
            return
        self._datasets[phase] = cut.share(rank, count)
        self.shares.add(phase)
        if tf_datasets.drops_remainder(cut.batch) and count_data(dataset) is None:
            self.remarks.append(
                f"On one device stock Keras counts a batch too many in losses and metrics of the {phase} data "
                "where it ends, as its batches have a fixed size. A rank's part has none: here they are the means."
            )
        if cut.repeated:
            names = ", ".join(cut.repeated)
            self.remarks.append(
                f"Every rank reads all of the {phase} data up to its {names}; after that it drops others' samples."
            )

    def read_whole(self, phase: str, reason: str, count: int) -> None:
        """Notes that every rank reads whole batches and takes its share of each."""
        self.remarks.append(
            f"Every rank reads whole batches of the {phase} data and uses its part of each, so decoding is done "
            f"{count} times: {reason}."
        )


@contextmanager
def reading_shares(arguments: Mapping[str, Any], rank: int, count: int) -> Iterator[Reading]:
    """Finds out how a rank reads no more than its share of every batch; memfit's own pipelines give it for a while.

    Args:
        arguments: Of `fit`, by name. Arrays are not looked at: of them samples are read by number.
    """
    reading = Reading()
    with ExitStack() as stack:
        for phase, argument in _ARGUMENTS.items():
            data = arguments[argument]
            pipeline = pipeline_of(data)
            if pipeline is not None:
                if pipeline.why_whole:
                    reading.read_whole(phase, pipeline.why_whole, count)
                elif stack.enter_context(pipeline.order.sharing(rank, count)):
                    reading.shares.add(phase)
                else:
                    reading.read_whole(phase, "its last batch has fewer samples than there are ranks", count)
            elif keras_data.is_dataset(data):
                reading.cut(phase, data, rank, count)
            elif phase == "training" and keras_data.batches_itself(data):
                reading.read_whole(phase, f"a {type(data).__name__} gives whole batches", count)
        yield reading
