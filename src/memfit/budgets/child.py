"""The other side of `isolated`: reads one task from a pipe, runs it, sends the answer back through another."""

import os
import pickle
import socket
import sys
import threading
import traceback
from contextlib import suppress

import cloudpickle

_questions: socket.socket | None = None  # to the caller of this process's task
_asking = threading.Lock()


def run_task(task_read: int, result_write: int, questions: int | None = None) -> None:
    """Reads a task from a pipe, runs it, and writes the answer into another; it may `ask` through a socket."""
    global _questions
    # What the function starts must not keep the pipe open: the parent waits for its end.
    os.set_inheritable(result_write, False)
    if questions is not None:
        os.set_inheritable(questions, False)
        _questions = socket.socket(fileno=questions)
    with os.fdopen(task_read, "rb") as stream:
        task = stream.read()
    answer = _answer(task)
    sys.stdout.flush()
    with os.fdopen(result_write, "wb") as stream:
        stream.write(len(answer).to_bytes(8, "big") + answer)


def ask(question: bytes) -> bytes:
    """Asks the caller of the task that this process runs, and waits for the answer.

    Raises:
        ConnectionError: If nobody answers: the caller is gone, or this process runs no such task.
    """
    from memfit.budgets.isolation import receive

    with _asking:
        if _questions is None:
            raise ConnectionError("this process runs no task that may ask")
        _questions.sendall(len(question).to_bytes(8, "big") + question)
        answer = receive(_questions)
    if answer is None:
        raise ConnectionError("the caller of this task is gone")
    return answer


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
    message = f"{type(error).__name__}: {error}"
    for base in type(error).__mro__:
        if base.__module__ == "builtins" and issubclass(base, BaseException):
            with suppress(TypeError):
                return base(message)
    return RuntimeError(message)


if __name__ == "__main__":  # with the numbers of two pipes
    run_task(*map(int, sys.argv[1:3]))
