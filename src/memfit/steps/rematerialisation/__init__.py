"""Activations computed again in the backward pass instead of kept (activation checkpointing).

`find_choices` lists what a step may keep, from the fastest choice to the smallest; each is a `Segments`, plain
data. `rematerialise` calls a model so that its backward pass keeps no more than that, and a step with segments
runs inside `run_one_by_one`. `find_choices_of_loss` and `differentiate` are the same for any function that returns
a loss, `find_choices_of_step` and `rematerialised_tapes` for a step with tapes of its own. These names are all that
other packages use.
"""

from memfit.steps.rematerialisation.choosing.find import find_choices, find_choices_of_loss
from memfit.steps.rematerialisation.model_call import differentiate, rematerialise, run_one_by_one
from memfit.steps.rematerialisation.tapes import find_choices_of_step, rematerialised_tapes
from memfit.steps.segments import Segments

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
