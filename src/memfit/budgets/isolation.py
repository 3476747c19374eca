"""Running a function in a process of its own, so that all its device memory is back when it ends."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any, TypeVar

import cloudpickle

from memfit.budgets.arena import arena_environment
from memfit.errors import InvalidInput, ProcessDied

Result = TypeVar("Result")
# How long a child may take to end by itself once its answer is here or its pipe is closed.
_GRACE_SECONDS = 10.0


def isolated(
    function: Callable[..., Result],
    *args: Any,
    memory: int | str | None = None,
    timeout: float | None = None,
) -> Result:
    """Runs `function(*args)` in a fresh process and returns its result.

    The process is new (not forked), so TensorFlow starts in it as in a new program, and whatever memory it took
    is back with the system when this call returns. What it prints goes where the caller's output goes. The
    function and its arguments may be anything that `cloudpickle` can send, lambdas included.

    Args:
        function: What to run.
        *args: Its arguments.
        memory: A size such as "1GiB": the process runs in an arena of that size. None: it has the caller's
            environment, and so the caller's arena if there is one.
        timeout: Seconds after which the process and everything it started is ended.

    Returns:
        What the function returned.

    Raises:
        ProcessDied: If the process ended without a result; it names the signal and its usual meaning.
        TimeoutError: If the time was up.
        InvalidInput: If the function, an argument or the result cannot be sent between processes.
        Exception: Whatever the function raised, with the child's traceback as its cause.

    Example:
        >>> isolated(lambda a, b: a + b, 1, 2)
        3
    """
    extra = {} if memory is None else arena_environment(memory)
    return run_isolated(function, args, environment=extra, timeout=timeout)


def run_isolated(
    function: Callable[..., Result],
    args: tuple[Any, ...],
    *,
    environment: Mapping[str, str],
    timeout: float | None = None,
    stderr: int | None = None,
) -> Result:
    """Does the work of `isolated` with any further environment variables and a place for the error stream."""
    if timeout is not None and timeout <= 0:
        raise InvalidInput("A timeout is a positive number of seconds", received=timeout)
    task = dump_task(function, args)
    task_read, task_write = os.pipe()
    result_read, result_write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "memfit.budgets.child", str(task_read), str(result_write)],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=(task_read, result_write),
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,  # a process group of its own, so that a timeout can end all of it
    )
    os.close(task_read)
    os.close(result_write)
    try:
        answer = converse(task, task_write, result_read, timeout)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
    finally:
        os.close(result_read)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # whatever is left of it
        child.wait()
    return read_answer(answer, child.returncode)


def dump_task(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Returns a function and its arguments as bytes for another process.

    Raises:
        InvalidInput: If they cannot be sent.
    """
    try:
        task: bytes = cloudpickle.dumps((function, args))
    except Exception as error:  # cloudpickle raises whatever an object's own pickling raises
        raise InvalidInput(
            f"The function and its arguments must be picklable to be sent to another process ({error})",
            received=function,
            remedy="Pass plain data or file names, and build the rest inside the function",
        ) from error
    return task


def converse(
    task: bytes,
    task_write: int,
    result_read: int,
    timeout: float | None,
    ended: int | None = None,
    questions: socket.socket | None = None,
    respond: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Sends the task and reads the answer; b"" when the child ended without one.

    Args:
        task: What to send.
        task_write: The pipe to send it through.
        result_read: The pipe that the answer comes through.
        timeout: Seconds to wait for it; time in which a question is answered is the child's, too.
        ended: A pipe that can be read when the child has ended; None where only the end of the other one tells.
        questions: Where the child asks while it runs; None if it cannot.
        respond: Answers a question.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        with os.fdopen(task_write, "wb") as stream:
            stream.write(task)
    except BrokenPipeError:
        return b""
    answer = bytearray()
    with DefaultSelector() as selector:
        selector.register(result_read, EVENT_READ)
        if questions is not None and respond is not None:
            selector.register(questions, EVENT_READ)
        if ended is not None:
            selector.register(ended, EVENT_READ)
        # The answer says its length, because the pipe's end need not come: a process that the function
        # forked may hold it open.
        while len(answer) < 8 or len(answer) < 8 + int.from_bytes(answer[:8], "big"):
            left = None if deadline is None else deadline - time.monotonic()
            ready = [] if left is not None and left <= 0 else selector.select(left)
            if not ready:
                raise TimeoutError(f"The isolated process did not finish within {timeout:g} s and was ended.")
            files = [key.fileobj for key, _ in ready]
            if result_read not in files:
                if ended in files:
                    return b""
                if questions is not None and not _answer_question(questions, respond):
                    selector.unregister(questions)  # the child has closed its end
                continue
            chunk = os.read(result_read, 2**20)
            if not chunk:
                return b""
            answer += chunk
    return bytes(answer[8:])


def _answer_question(questions: Any, respond: Any) -> bool:
    """Answers one question; False when none comes any more."""
    question = receive(questions)
    if question is None:
        return False
    response = respond(question)
    with suppress(BrokenPipeError, ConnectionResetError):  # the asking process was ended
        questions.sendall(len(response).to_bytes(8, "big") + response)
    return True


def receive(stream: socket.socket) -> bytes | None:
    """Reads one message that says its length; None at the end of the stream."""
    message = bytearray()
    while len(message) < 8 or len(message) < 8 + int.from_bytes(message[:8], "big"):
        try:
            chunk = stream.recv(2**20 if len(message) >= 8 else 8 - len(message))
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        message += chunk
    return bytes(message[8:])


def read_answer(answer: bytes, exit_code: int) -> Any:
    """Returns the result in a child's answer, or raises what the child raised; without an answer, `ProcessDied`."""
    if not answer:
        raise ProcessDied(exit_code)
    # The only pickle read here came through the pipe of a child that this process has started.
    kind, value, text = pickle.loads(answer)
    if kind == "result":
        return value
    if kind == "unsendable":
        raise InvalidInput(text, remedy="Return plain data, NumPy arrays, or a file's name")
    raise value from ChildTraceback(text)


class ChildTraceback(Exception):
    """Carries the traceback text of an exception raised in an isolated process."""

    def __str__(self) -> str:
        return f"\n\nTraceback of the isolated process:\n{self.args[0]}"
