"""Recording a step's allocations in an isolated process."""

from memfit.estimation.recording.recording import Recording as Recording
from memfit.estimation.recording.step import Build as Build
from memfit.estimation.recording.step import Step as Step
