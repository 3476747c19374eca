"""The lever of the optimizer's state: another optimizer with fewer slots a weight."""

import math
from typing import Any

from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Lever
from memfit.sizes import Size

NAME = "optimizer state"
_ONE_SLOT = ("Adagrad", "Lion", "RMSprop", "SGD")  # all others keep two values a weight, as Adam does
# Below this share of the weights there is nothing to win: Adafactor's own factored state takes a few per cent.
_WORTH = 0.5


def lever(model: Any) -> Lever:
    """Says what an optimizer with less state would save.

    A plan does not swap the optimizer of a compiled model: its schedule, its state and the callbacks that hold it
    are the user's.
    """
    trained = 4 * sum(math.prod(weight.shape) for weight in model.trainable_variables)
    optimizer = model.optimizer
    if optimizer.built:
        slots = 4 * sum(math.prod(weight.shape) for weight in optimizer.variables)
    else:
        slots = trained * (1 if type(optimizer).__name__ in _ONE_SLOT else 2)
    if (type(optimizer).__name__ == "SGD" and not optimizer.momentum) or slots < _WORTH * trained:
        return Lever(NAME, Fidelity.PRECISION, used=False, why="the optimizer keeps next to no state")
    name = type(optimizer).__name__
    why = f"yours to change: Adafactor keeps far less than {name}, and takes another path"
    return Lever(NAME, Fidelity.PRECISION, used=False, why=why, saving=Size(slots))
