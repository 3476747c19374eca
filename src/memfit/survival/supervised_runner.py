"""Running Keras's `fit` in a process that `memfit run` started: with checkpoints, and on from where it was."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from memfit.budgets.budget import budget
from memfit.compat import keras_data
from memfit.compat.keras_training import has_strategy
from memfit.data.arrays import arrays
from memfit.errors import InvalidInput, MemfitError
from memfit.planning.does_not_fit import DoesNotFit
from memfit.planning.fingerprint import fingerprint
from memfit.planning.plan import Plan
from memfit.scaling.cluster import find_cluster
from memfit.scaling.survivors import register_keeper
from memfit.survival.resuming import ResumingCallbacks
from memfit.survival.settings import name_of_rank, record_id
from memfit.survival.stream_teller import StreamTeller
from memfit.survival.supervision import Supervision
from memfit.training.batches import KERAS_DEFAULT, count_data
from memfit.training.feeding import Feed, feed, feed_of
from memfit.training.monitoring.monitoring import list_callbacks
from memfit.training.records.opening import Place
from memfit.training.running import MakePlan, Runner, stock_runner
from memfit.training.telling import Teller

_LOG = logging.getLogger("memfit")
_TIGHTER = 0.8  # of what the plan that ran out had predicted


class NothingTighter(MemfitError):
    """A training ran out of memory by the tightest plan there is: a restart would be in vain."""


class SupervisedRunner(Runner):
    """Runs every `fit` of a process under supervision."""

    restarts = True

    def __init__(self, supervision: Supervision, keras_fit: Any = None) -> None:
        """Takes over the trainings of a process.

        Args:
            supervision: Of this process.
            keras_fit: Keras's own `Model.fit`, where another function stands in its place.
        """
        self.supervision = supervision
        self.strict = supervision.settings.strict
        self._keras_fit = keras_fit or keras.Model.fit
        self._call = -1  # number of the fit() in the script
        self._is_known = False  # whether an earlier process has told its plan
        register_keeper(supervision.keep_state)

    def begin(self, model: keras.Model, arguments: Mapping[str, Any]) -> None:
        """Counts the calls of fit()."""
        self._call += 1
        self._is_known = False

    def place(self) -> Place | None:
        """Returns where the record of this call goes, the same in every process; None for a call that had ended."""
        settings = self.supervision.settings
        if not settings.records or self.supervision.has_finished(self._call):
            return None
        identity = record_id(settings.run, self._call)
        return Place(Path(settings.records), identity, "memfit run", settings.script, self._call)

    def teller(self, arguments: Mapping[str, Any]) -> Teller:
        """Returns one for the error stream; silent where an earlier process has told the same."""
        settings = self.supervision.settings
        return StreamTeller(quiet=settings.quiet or self._is_known)

    def plan(self, model: keras.Model, memory: int | str | None, make: MakePlan) -> Plan:
        """Returns the plan that an earlier process followed; a tighter one where memory ended that process.

        Raises:
            NothingTighter: If there is none: the same plan would run out once more.
        """
        supervision = self.supervision
        before = self._plan_before(model)
        if before is None:
            return make(memory)
        self._is_known = True
        if not supervision.settings.tighten or supervision.has_finished(self._call):
            return before
        tighter = _make_tighter(before, make)
        self._is_known = False
        return tighter

    def fit(
        self, model: keras.Model, arguments: Mapping[str, Any], plan: Plan | None, data_fingerprint: int
    ) -> keras.callbacks.History:
        """Calls Keras's `fit`, past what an earlier process has trained, and saves the state in which it ends."""
        supervision, plan_file = self.supervision, self._plan_file()
        if has_strategy(model) and find_cluster() is not None:
            # Reading its variables is a collective, which all ranks would have to do at the same time.
            _LOG.warning("The script's own strategy trains on several processes: no checkpoints are written.")
            with stock_runner():
                return self._keras_fit(model, **arguments)
        if plan is not None:
            unfinished = plan_file.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(plan.to_json()))
            unfinished.replace(plan_file)  # a kill never leaves half of one
        arguments, data_feed = _with_repeatable_order(arguments, supervision.settings.seed + self._call)
        callbacks = ResumingCallbacks(
            list_callbacks(arguments["callbacks"]),
            supervision=supervision,
            call=self._call,
            data=arguments["x"],
            feed=data_feed,
            kept_open=arguments["steps_per_epoch"] is not None,
            data_fingerprint=data_fingerprint,
            add_progbar=arguments["verbose"] != 0,
            verbose=arguments["verbose"],
            epochs=arguments["epochs"],
            steps=_steps(arguments),
            model=model,
        )
        supervision.training = True
        try:
            with stock_runner():
                history = self._keras_fit(model, **{**arguments, "callbacks": callbacks})
            callbacks.end()
        finally:
            supervision.training, supervision.snapshot = False, None
        return history

    def _plan_before(self, model: keras.Model) -> Plan | None:
        path = self._plan_file()
        try:
            plan = Plan.load(path) if path.exists() else None
        except InvalidInput:  # of another version of memfit
            return None
        return plan if plan is not None and plan.model == fingerprint(model) else None

    def _plan_file(self) -> Path:
        name = name_of_rank(f"plan-{self._call:03d}", self.supervision.settings.rank)
        return self.supervision.directory / f"{name}.json"


def _make_tighter(before: Plan, make: MakePlan) -> Plan:
    """Makes a plan that takes less than one that ran out.

    Raises:
        NothingTighter: If the tightest one is that itself.
    """
    there = budget().device.total
    # It may have been for more than there is; otherwise its step took more than was predicted.
    room = there if there < before.predicted else int(_TIGHTER * min(before.memory, before.predicted))
    farther = None
    while True:
        try:
            plan = make(room)
        except DoesNotFit as refusal:
            least, farther = refusal.closest, refusal.fidelity
            if least and least.recipe != before.recipe and least.predicted < min(before.predicted, there):
                return least
            break
        except InvalidInput:  # the weights alone take more
            break
        if plan.recipe != before.recipe:
            return plan
        room = int(_TIGHTER * min(room, plan.predicted))
    would = "" if farther is None else f' With allow="{farther}" one would.'
    raise NothingTighter(
        f"Memory ran out in {before.recipe} ({before.predicted} predicted), and no plan that is allowed takes "
        f"less.{would} Give more memory, or train smaller batches."
    )


def _with_repeatable_order(arguments: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], Feed]:
    """Returns the arguments, and what is known of the order of the data.

    Arrays that Keras would shuffle without a seed are given an order that can be repeated: no script counts on a
    particular one there.
    """
    changed = dict(arguments)
    known = feed_of(arguments)
    unseeded = not known.reproducible and not keras_data.batches_itself(changed["x"])
    if not unseeded or changed["shuffle"] == "batch" or changed["steps_per_epoch"] is not None:
        return changed, known
    parts = (changed["x"], changed["y"], changed["sample_weight"])
    try:
        if changed["validation_split"] and changed["validation_data"] is None:
            parts, changed["validation_data"] = keras_data.split_off_validation(
                parts, changed["validation_split"]
            )
        data = arrays(*parts, batch_size=changed["batch_size"] or KERAS_DEFAULT, shuffle=True, seed=seed)
    except (MemfitError, ValueError, TypeError):  # sparse arrays and such, which only Keras can take apart
        return dict(arguments), known
    changed["validation_batch_size"] = changed["validation_batch_size"] or changed["batch_size"]
    changed.update(x=data, y=None, sample_weight=None, shuffle=False, validation_split=0.0, batch_size=None)
    return changed, feed(data)


def _steps(arguments: Mapping[str, Any]) -> int | None:
    """Returns the steps of an epoch, for the progress bar; None where only the data's end will tell."""
    x, given = arguments["x"], arguments["steps_per_epoch"]
    count = count_data(x) if given is None else int(given)
    if count is None or given is not None or keras_data.batches_itself(x):
        return count
    share = arguments["validation_split"] if arguments["validation_data"] is None else 0.0
    return -(-int(count * (1 - share)) // (arguments["batch_size"] or KERAS_DEFAULT))
