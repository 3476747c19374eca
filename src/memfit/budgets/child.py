"""The other side of `isolated`: reads one task from a pipe, runs it, sends the answer back through another."""

import os
import pickle
import sys
import traceback
from typing import Any

import cloudpickle


def main() -> None:
    """Runs the task given by two pipe numbers on the command line."""
    task_read, result_write = (int(number) for number in sys.argv[1:3])
    run_task(task_read, result_write)


def run_task(task_read: int, result_write: int) -> None:
    """Reads a task from a pipe, runs it, and writes the answer into another."""
    # What the function starts must not keep the pipe open: the parent waits for its end.
    os.set_inheritable(result_write, False)
    with os.fdopen(task_read, "rb") as stream:
        task = stream.read()
    answer = _answer(task)
    sys.stdout.flush()
    with os.fdopen(result_write, "wb") as stream:
        stream.write(len(answer).to_bytes(8, "big") + answer)


def _answer(task: bytes) -> bytes:
    try:
        function, args = pickle.loads(task)
        result = function(*args)
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too, belong to the caller
        return _packed_exception(error)
    try:
        return cloudpickle.dumps(("result", result, ""))
    except Exception as error:  # an object's own pickling raises whatever it likes
        text = f"The result of an isolated function must be picklable ({type(result).__name__}: {error})"
        return pickle.dumps(("unsendable", None, text))


def _packed_exception(error: BaseException) -> bytes:
    text = traceback.format_exc()
    try:
        packed = cloudpickle.dumps(("exception", error, text))
        pickle.loads(packed)  # an exception may pickle and yet not unpickle
    except Exception:  # as above, for an exception's own pickling and unpickling
        return cloudpickle.dumps(("exception", _plain(error), text))
    return packed


def _plain(error: BaseException) -> BaseException:
    """A stand-in for an exception that cannot be sent: nearest plain base, same message."""
    for base in type(error).__mro__:
        if base.__module__ == "builtins":
            try:
                return _with_message(base, f"{type(error).__name__}: {error}")
            except TypeError:
                continue
    return RuntimeError(f"{type(error).__name__}: {error}")


def _with_message(base: type[Any], message: str) -> BaseException:
    stand_in: BaseException = base(message)
    return stand_in


if __name__ == "__main__":
    main()
