"""`fit`, `evaluate` and `predict` of a process that may be one rank of several: those of `training`, with peers."""

from functools import cache

from memfit.scaling.communicator import join_cluster
from memfit.training.evaluating import evaluate as evaluate
from memfit.training.fitting import fit as fit
from memfit.training.peers import ALONE, Peers, install_finder
from memfit.training.predicting import predict as predict


@cache
def find_ranks() -> Peers:
    """Returns the ranks of the job that this process belongs to; nobody where it belongs to none."""
    ranks = join_cluster()
    if ranks is None:
        return ALONE
    from memfit.scaling.rank import Rank

    return Rank(ranks)


install_finder(find_ranks)
