"""Activations computed again in the backward pass instead of kept (activation checkpointing).

`find_choices` lists what a step may keep, from the fastest choice to the smallest; each is a `Segments`, plain
data. `rematerialise` calls a model so that its backward pass keeps no more than that, and a step with segments
runs inside `run_one_by_one`. `find_choices_of_loss` and `differentiate` are the same for any function that returns
a loss, `find_choices_of_step` and `rematerialised_tapes` for a step with tapes of its own. These names are all that
other packages use. They are loaded on first use: `Segments` alone, which plans are made of, needs neither NumPy nor
TensorFlow.
"""

from importlib import import_module

from memfit.steps.rematerialisation.segments import Segments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memfit.steps.rematerialisation.choosing.find import find_choices, find_choices_of_loss
    from memfit.steps.rematerialisation.loss_call import differentiate
    from memfit.steps.rematerialisation.model_call import rematerialise, run_one_by_one
    from memfit.steps.rematerialisation.tapes import find_choices_of_step, rematerialised_tapes

__all__ = [
    "Segments",
    "differentiate",
    "find_choices",
    "find_choices_of_loss",
    "find_choices_of_step",
    "rematerialise",
    "rematerialised_tapes",
    "run_one_by_one",
]
_MODULES = {
    "differentiate": "loss_call",
    "find_choices": "choosing.find",
    "find_choices_of_loss": "choosing.find",
    "find_choices_of_step": "tapes",
    "rematerialise": "model_call",
    "rematerialised_tapes": "tapes",
    "run_one_by_one": "model_call",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
