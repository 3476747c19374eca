"""What a dataset made by memfit is: its figures, the files left out, and the way back to any batch."""

from dataclasses import dataclass
from typing import Any

from memfit.data.bad_files import BadFiles
from memfit.data.order import Order
from memfit.sizes import Size
from memfit.tables import table


@dataclass(frozen=True, repr=False)
class Pipeline:
    """A dataset made by `memfit.images` or `memfit.arrays`; the dataset's attribute `memfit` holds it.

    Attributes:
        order: Which samples make up which batch of which epoch.
        batch_bytes: The bytes of one full batch.
        ahead: Batches prepared ahead.
        memory: The budget of host memory that it keeps to.
        any_length: The dataset without the promise that every iteration has all the batches.
        cache: Where decoded images are kept, and why there.
        bad_files: The files left out so far.
        mixes: Whether what becomes of a sample may depend on the others of its batch.
    """

    order: Order
    batch_bytes: Size
    ahead: int
    memory: Size
    any_length: Any
    cache: str = "none"
    bad_files: BadFiles | None = None
    mixes: bool = False

    @property
    def why_whole(self) -> str:
        """Why a rank cannot read its share of a batch alone; empty where it can."""
        if self.mixes:
            return "its augmentation may mix the samples of a batch"
        if self.bad_files is not None and self.bad_files.policy != "raise":
            return (
                f'on_error="{self.bad_files.policy}" may leave out files, and shares are of those that remain'
            )
        return ""

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        return self.order.batches

    def resume(self, epoch: int, batch: int = 0) -> Any:
        """Returns the same dataset, to go on at a batch of an epoch, both counted from 0.

        Its first iteration is the rest of that epoch, of which the samples before are not read; the next ones
        are the following epochs, whole. Keras cannot know its length in advance, as the first iteration is
        shorter. Both datasets move along together, so after that first epoch the original one will do as well.

        Example:
            >>> import memfit, numpy as np
            >>> dataset = memfit.arrays(np.arange(6), batch_size=2, shuffle=True, seed=1)
            >>> epochs = [[batch.numpy().tolist() for batch in dataset] for _ in range(3)]
            >>> resumed = dataset.memfit.resume(epoch=1, batch=2)
            >>> [batch.numpy().tolist() for batch in resumed] == epochs[1][2:]
            True
            >>> [batch.numpy().tolist() for batch in dataset] == epochs[2]
            True
        """
        self.order.seek(epoch, batch)
        self.any_length.memfit = self
        return self.any_length

    def __repr__(self) -> str:
        order = self.order
        index, workers = order.shard
        of_all = f" of {order.count:,} (shard {index} of {workers})" if workers > 1 else ""
        batches = f"{order.batches:,} of {order.batch_size}, {self.batch_bytes} each, {self.ahead} ahead"
        rows: list[list[object]] = [
            ["samples", f"{order.samples:,}{of_all}"],
            ["batches", batches],
            ["order", f"shuffled by seed {order.seed}" if order.shuffle else "as given"],
            ["memory", f"at most {self.memory}"],
            ["cache", self.cache],
        ]
        if self.bad_files is not None and self.bad_files.policy != "raise":
            rows.append(["bad files", len(self.bad_files)])
        return table(rows)

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as plain data, sizes in bytes."""
        return {
            "samples": self.order.samples,
            "batches": self.order.batches,
            "batch_size": self.order.batch_size,
            "batch_bytes": int(self.batch_bytes),
            "ahead": self.ahead,
            "shuffle": self.order.shuffle,
            "seed": self.order.seed,
            "shard": list(self.order.shard),
            "epoch": self.order.position.epoch,
            "batch": self.order.position.batch,
            "memory": int(self.memory),
            "cache": self.cache,
            "bad_files": dict(self.bad_files.reasons) if self.bad_files is not None else {},
        }


def pipeline_of(dataset: Any) -> Pipeline | None:
    """Returns the pipeline behind a dataset that memfit made; None for any other.

    A dataset derived from it (`dataset.map(...)`) is another one: Keras and tf.data keep no way back.
    """
    pipeline = getattr(dataset, "memfit", None)
    return pipeline if isinstance(pipeline, Pipeline) else None
