"""Quantised for inference: Keras's own integers of 8 or 4 bits."""

import warnings
from typing import Any

from memfit.slimming.rebuilding import CannotSlim, copy_model
from memfit.slimming.variants.variant import Made, Variant


class Quantised(Variant):
    """Calls `quantize` of a copy: smaller files and weights in inference, and nothing else."""

    name = "quantised"
    meaning = "bits of a weight, 8 or 4"
    default, least, most, whole = 8, 4, 8, True

    def why_not(self, model: Any) -> str | None:
        """Every model may be tried."""
        return None

    def make(self, model: Any, amount: float) -> Made:
        """Quantises the layers that Keras can."""
        if amount not in (4, 8):
            raise CannotSlim("Keras quantises to 8 or 4 bits")
        new = copy_model(model)
        before = [str(weight.dtype) for weight in new.weights]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for every layer that Keras does not quantise
            new.quantize(f"int{int(amount)}")
        count = sum("int8" in str(weight.dtype) for weight in new.weights) - before.count("int8")
        if not count:
            raise CannotSlim("Keras quantises Dense, EinsumDense and Embedding, and it has none of them")
        notes = (
            "for inference only: it saves nothing in training, which needs weights that can change in small steps",
            f"{count} of its {len(before)} weights became int{int(amount)}: Keras quantises no others",
        )
        return Made(new, notes, trains=False)
