"""`memfit.watch`: finds memory that grows steadily in a loop, as a `with` block and as a Keras callback."""

import logging
import weakref
from typing import Any, Self

import keras

from memfit.training.leaks.leak import Leaks
from memfit.training.leaks.watcher import Watcher, begin, end

_log = logging.getLogger("memfit")


class watch(keras.callbacks.Callback):  # noqa: N801 (used as a function: `with memfit.watch():`)
    """Finds memory that grows steadily, what holds it, and the line that lets it grow.

    It watches any loop: `fit`, `predict` or `model(x)` called again and again, a custom training loop. A
    thread looks at the memory and at what your names hold, and costs about 3% of the time. What grew in
    proportion to time from the middle to the end is a leak; what fills up and stops, or is freed again, is not.
    Each leak is logged as a warning of the logger "memfit" at the end. Less than about ten seconds show too little.

    Attributes:
        leaks: The `Leaks` so far; complete when the block, or the `fit`, has ended.

    Raises:
        InvalidInput: If it begins inside of another watch.

    Example:
        ```python
        with memfit.watch() as watched:
            for images in batches:
                results.append(model(images))
        print(watched.leaks)

        model.fit(x, y, epochs=5, callbacks=[memfit.watch()])
        ```
    """

    def __init__(self) -> None:
        super().__init__()
        self._watcher: Watcher | None = None
        self._leaks = Leaks()

    @property
    def leaks(self) -> Leaks:
        """What leaks, as far as it can be told by now."""
        return self._leaks if self._watcher is None else self._watcher.leaks()

    def __enter__(self) -> Self:
        self._watcher = begin()
        # A fit that fails never says that it ended: the watch ends with its callback.
        weakref.finalize(self, end, self._watcher)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            self._leaks = end(watcher)
            for leak in self._leaks:
                _log.warning("%s", leak)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to watch."""
        self.__enter__()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends it."""
        self.__exit__(None, None, None)
