"""The process of one trial: runs the function, stops at its first `fit` for permission, measures."""

import json
import pickle
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from memfit.budgets.budget import read_count
from memfit.budgets.child import ask
from memfit.budgets.isolation import Result, dump_task, read_answer
from memfit.compat.tf_runtime import is_initialised
from memfit.errors import MemfitError, ProcessDied, in_one_line
from memfit.oom.reading import ran_out_of_memory, read_error
from memfit.searching.trial import DONE, FAILED, OUT_OF_MEMORY, Trial
from memfit.sizes import Size
from memfit.survival.intercepting import intercept
from memfit.survival.scripts import after_import

# The first byte of what a trial asks the process that started it.
FIRST_FIT, RECORD = b"f", b"r"


def run_trial(function: bytes, setting: Any, predicts: bool, on_host: bool) -> Trial:
    """Runs a trial in this process; its setting is not sent back.

    Args:
        function: The pickled function.
        setting: What to call it with.
        predicts: Whether to predict at the first `fit` what is needed, and to wait for it.
        on_host: Whether the memory that counts is all that this process takes, not that of a device.
    """
    watch = _Watch(predicts, on_host)
    watch.begin()
    begun = time.monotonic()
    value, error, status, trace = None, "", DONE, ""
    try:
        value = _without_model(pickle.loads(function)(setting))
    except BaseException as raised:  # sys.exit() in a trial ends that trial
        status = OUT_OF_MEMORY if is_out_of_memory(raised) else FAILED
        error, trace = describe(raised, status), traceback.format_exc()
    seconds = time.monotonic() - begun - watch.waited
    peak = resident_peak() if on_host else watch.device_peak()
    return Trial(None, status, value, error, trace, None if peak is None else Size(peak), seconds=seconds)


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether an error is that memory ran out, or that no plan fits; by name, as planning may not be there."""
    return type(error).__name__ == "DoesNotFit" or ran_out_of_memory(error)


def describe(error: BaseException, status: str) -> str:
    """Returns an error as one line: of an out-of-memory what ran out, of anything else what it says."""
    if status != OUT_OF_MEMORY or isinstance(error, MemfitError):
        return in_one_line(error)
    told = read_error(error)
    parts = [told.says.rstrip("."), *([f"{told.requested} asked for"] if told.requested else [])]
    return ", ".join([*parts, *([f"by {told.asked}"] if told.asked is not None else [])])


def resident_peak() -> int:
    """Returns the most memory that this process has had from the host."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _without_model(value: Any) -> Any:
    """Keras's `History` holds the model: what comes back of it is its figures."""
    return value.history if type(value).__name__ == "History" and hasattr(value, "model") else value


class _Watch:
    """What is known of a trial while it runs: its first `fit`, and its peak."""

    def __init__(self, predicts: bool, on_host: bool) -> None:
        self._predicts, self._on_host = predicts, on_host
        self._peak_before = 0
        self._meter: Any = None
        self.waited = 0.0

    def begin(self) -> None:
        """Looks out for the first call of `Model.fit` or `memfit.fit`."""
        from memfit.estimation.recording_process import lend

        lend(_AskedRecordings())
        after_import("keras", self._intercept)
        after_import("memfit.training.fitting", self._install_runner)

    def _intercept(self, keras: Any) -> None:
        if keras.config.backend() == "tensorflow":
            intercept(keras.Model, "fit", self._route)

    def _route(self, original: Callable[..., Any], model: Any, **arguments: Any) -> Any:
        def predict() -> int | None:
            from memfit.searching.needs import predict_need

            return predict_need(model, arguments)

        self._see_fit(predict)
        return original(model, **arguments)

    def _install_runner(self, fitting: Any) -> None:
        from memfit.training.running import Runner, install_runner

        watch = self

        class AskingRunner(Runner):
            """Asks for what a plan says that it needs."""

            def fit(self, model: Any, arguments: Any, plan: Any, data_fingerprint: int) -> Any:
                if plan is not None:
                    watch._see_fit(lambda: plan.predicted + plan.margin)
                return super().fit(model, arguments, plan, data_fingerprint)

        install_runner(AskingRunner())

    def _see_fit(self, predict: Callable[[], int | None]) -> None:
        """Begins to measure at the first `fit`, and waits until there is room for what is predicted."""
        if self._meter is not None:
            return
        from memfit.budgets.peaks import PeakMeter, device_name, take_peak

        self._peak_before = take_peak(device_name())
        self._meter = PeakMeter(device_name())
        self._meter.__enter__()
        if self._predicts:
            begun = time.monotonic()
            self._ask(predict())
            self.waited += time.monotonic() - begun

    def _ask(self, need: int | None) -> None:
        """Waits for permission to train."""
        count = read_count(self._meter.device)
        holds = 0 if count is None else int(count.current)
        if self._on_host:
            import psutil

            holds = psutil.Process().memory_info().rss
            need = None if need is None else need + holds
        told = ask(FIRST_FIT + json.dumps({"need": need, "holds": holds}).encode())
        if told != b"go":
            raise KeyboardInterrupt

    def device_peak(self) -> int | None:
        """Returns the peak of the device; None where TensorFlow did not run, or does not count."""
        if self._meter is not None:
            return max(self._peak_before, self._meter.so_far()) or None
        if not is_initialised():
            return None
        on_gpu = bool(sys.modules["tensorflow"].config.list_logical_devices("GPU"))
        count = read_count("GPU:0" if on_gpu else "CPU:0")
        return None if count is None else int(count.peak)


class _AskedRecordings:
    """Records steps in a process that the caller of this trial keeps for all of them."""

    def run(
        self, function: Callable[..., Result], args: tuple[Any, ...], *, timeout: float | None = None
    ) -> Result:
        """Runs a function there, as `ForkServer.run` does."""
        told = ask(RECORD + pickle.dumps((dump_task(function, args), timeout)))
        kind, answer, code = pickle.loads(told)
        if kind == "timeout":
            raise TimeoutError(answer)
        if kind == "died":
            raise ProcessDied(code)
        result: Result = read_answer(answer, code)
        return result
