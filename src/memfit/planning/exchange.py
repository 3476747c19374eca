"""What adding up gradients over several ranks takes beside a step."""

from typing import Any

from memfit.sizes import Size

# Gradients are added up one after the other, in their own places: measured were 8 MiB beside gradients of 4 MiB
# each (2 ranks, TensorFlow's ring on the CPU; docs/scaling.md). What NCCL takes on a GPU was not measured.
_OF_LARGEST = 2.0


def exchange_bytes(model: Any) -> Size:
    """Returns what the largest gradient takes while it is added up; all others stay where they are."""
    sizes = [
        variable.value.dtype.size * int(variable.value.shape.num_elements())
        for variable in model.trainable_variables
    ]
    return Size(round(_OF_LARGEST * max(sizes, default=0)))
