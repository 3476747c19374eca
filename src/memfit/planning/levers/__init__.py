"""The levers: one file each, one list. The search and the guard's tightening walk it in this order."""

from memfit.planning.job import Job
from memfit.planning.levers.allocator import Allocator
from memfit.planning.levers.host_inputs import HostInputs
from memfit.planning.levers.immediate_update import ImmediateUpdate
from memfit.planning.levers.lever import Lever
from memfit.planning.levers.lighter_state import AdafactorVelocity, EightBitMoments
from memfit.planning.levers.micro_batches import MicroBatches
from memfit.planning.levers.mixed_precision import LoweredPrecision
from memfit.planning.levers.optimizer_state import OptimizerState
from memfit.planning.levers.rematerialisation import Rematerialisation
from memfit.planning.levers.sharded_optimizer import ShardedOptimizer
from memfit.planning.levers.smaller_network import SmallerNetwork
from memfit.planning.levers.table_rows import TableRows
from memfit.planning.levers.uint8_inputs import Uint8Inputs
from memfit.planning.levers.validation import ValidationSlices

# Recipes are combined in this order; what a recipe saves is predicted by undoing its levers from the last.
LEVERS: list[Lever] = [
    MicroBatches(),
    Rematerialisation(),
    LoweredPrecision(),
    ShardedOptimizer(),
    AdafactorVelocity(),
    EightBitMoments(),
    ImmediateUpdate(),
    HostInputs(),
    ValidationSlices(),
    Allocator(),
    Uint8Inputs(),
    OptimizerState(),
    TableRows(),
    SmallerNetwork(),
]


def levers_for(job: Job) -> list[Lever]:
    """Lists the levers that a job may use."""
    return [
        lever
        for lever in LEVERS
        if (job.is_fit or lever.of_any_step) and (job.ranks > 1 or not lever.of_ranks)
    ]
