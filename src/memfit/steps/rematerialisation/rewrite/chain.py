"""Ops in a chain: each waits for the one before, so that what one frees is free for the next."""

from collections.abc import Sequence

from memfit.compat.tf_graphs import Op, Tensor, run_after


class Chain:
    """Control dependencies from op to op.

    TensorFlow's executors run whatever is ready, and would compute everything again at once, early.

    Args:
        incoming: What has to be there before the first op.
    """

    def __init__(self, incoming: Sequence[Tensor]) -> None:
        self._before: list[Op] = [tensor.op for tensor in incoming]
        self._of_biases: set[Op] = set()

    def append(self, op: Op) -> None:
        """Lets an op run next."""
        producers = {tensor.op for tensor in op.inputs}
        if not producers:  # a constant would not be one any more if it waited
            return
        for before in self._before:
            if before not in producers:
                run_after(op, before)
        # oneDNN merges a bias's gradient into the filter's: what waits for the one would then wait for the
        # other, which may wait for it in turn. So nothing waits for a bias's gradient, or what follows from it.
        if op.type == "BiasAddGrad" or producers & self._of_biases:
            self._of_biases.add(op)
        else:
            self._before = [op]
