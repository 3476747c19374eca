"""Memory that is taken away from a training until it runs out once."""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

import tensorflow as tf


def take_memory(share: float) -> None:
    """Takes the arena's memory but for a share of what a step needs; gives it back once a shortage is logged."""
    info = tf.config.experimental.get_memory_info("CPU:0")
    cap = int(os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"]) * 2**20
    left = int(share * (info["peak"] - info["current"]))
    held: list[Any] = []
    for size in (2**24, 2**20, 2**17):  # what is free is in pieces
        with contextlib.suppress(tf.errors.ResourceExhaustedError):
            while True:
                now = tf.config.experimental.get_memory_info("CPU:0")["current"]
                if cap - now - left < 2 * size:
                    break
                held.append(tf.fill((size // 4,), float(len(held))))

    class GiveBack(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if held:
                with Path("memory").open("a") as file:
                    file.write(f"{time.time()} {record.getMessage()}\n")
            held.clear()

    logging.getLogger("memfit").addHandler(GiveBack())
