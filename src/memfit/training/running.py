"""Who runs Keras's `fit`: Keras itself, unless `memfit run` has installed a runner of its own in this process."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from memfit.planning.plan import Plan
from memfit.training.records.opening import Place, new_place
from memfit.training.telling import Teller

MakePlan = Callable[[int | str | None], Plan]


class Runner:
    """What `fit` asks of whoever runs a training; this one leaves everything to Keras.

    Attributes:
        restarts: Whether a new process goes on where this one ends. Data is then not reopened in this one, and
            the script, which need not know memfit, trains as stock Keras where no plan can be made.
        strict: Whether a bug in memfit ends the training, instead of a warning and a training as in stock Keras.
    """

    restarts = False
    strict = False

    def begin(self, model: keras.Model, arguments: Mapping[str, Any]) -> None:
        """Hears of a call of `fit` before anything of it happens."""

    def place(self) -> Place | None:
        """Returns where the record of the training goes; None where none is kept."""
        return new_place()

    def teller(self, arguments: Mapping[str, Any]) -> Teller:
        """Returns who tells a person what is planned for a call of `fit`."""
        return Teller(quiet=arguments["verbose"] == 0)

    def plan(self, model: keras.Model, memory: int | str | None, make: MakePlan) -> Plan:
        """Returns the plan for a model: what `make` makes of a memory, or one that is known already."""
        return make(memory)

    def fit(
        self, model: keras.Model, arguments: Mapping[str, Any], plan: Plan | None, data_fingerprint: int
    ) -> keras.callbacks.History:
        """Calls Keras's `fit` and returns its result.

        Args:
            arguments: All arguments of Keras's `fit`, by name.
            plan: The plan that is followed; None for none.
            data_fingerprint: What the data is recognised by (`feeding.fingerprint_data`); 0 where nothing is known.
        """
        return model.fit(**arguments)


_STOCK = Runner()
_runner = _STOCK


def current_runner() -> Runner:
    """Returns the runner of this process."""
    return _runner


def install_runner(runner: Runner | None) -> None:
    """Lets every further `fit` of this process be run by a runner; None for Keras alone."""
    global _runner
    _runner = _STOCK if runner is None else runner


@contextmanager
def stock_runner() -> Iterator[None]:
    """Lets Keras alone run what is called inside: calls that memfit or a callback makes within a training."""
    runner = _runner
    install_runner(None)
    try:
        yield
    finally:
        install_runner(runner)
