"""Whether a checkpoint belongs to a training, and what of a training no checkpoint can hold."""

import logging
from collections.abc import Sequence
from typing import Any

from memfit.errors import InvalidInput
from memfit.planning.fingerprint import fingerprint
from memfit.survival.checkpoint_files import Checkpoint
from memfit.training.feeding import Feed

_LOG = logging.getLogger("memfit")


def check_belongs(before: Checkpoint, model: Any, data_fingerprint: int, call: int) -> None:
    """Checks that a checkpoint was made of this model, and warns where the data is other.

    Args:
        before: The checkpoint.
        model: The model that the script has built.
        data_fingerprint: What its data is recognised by; 0 where nothing is known.
        call: Number of the `fit` in the script.

    Raises:
        InvalidInput: If it is of another model.
    """
    if before.facts["model"] != fingerprint(model):
        raise InvalidInput(
            "A checkpoint fits only the model it was made from, and the script has built a different one",
            received=f"call {call + 1} of fit()",
            remedy="Train from the beginning: memfit run without --resume",
        )
    if before.facts["data"] != data_fingerprint:
        _LOG.warning(
            "The arrays given to fit() differ from those of the checkpoint: the script has made other ones, and "
            "training continues with them. Seed the random numbers they are made from."
        )


def warn_of_losses(unsaved: Sequence[str], feed: Feed) -> None:
    """Warns of what a restart of this training would lose.

    Args:
        unsaved: States of callbacks that cannot be pickled, by name.
        feed: What is known of the data's order.
    """
    if unsaved:
        _LOG.warning("Not in the checkpoints, because it cannot be pickled: %s.", ", ".join(unsaved))
    if not feed.reproducible:
        _LOG.warning(
            "After a restart this training continues at the beginning of an epoch, not at its batch: %s.",
            feed.why_not,
        )
