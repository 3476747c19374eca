"""What was compiled once, kept on disk: a compilation takes seconds to minutes, its figures a few kilobytes."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from memfit.data import disk_cache
from memfit.estimation.gpu_compiler.compiled import Compiled

# Changes whenever figures are read from a compiled module in another way.
_FORM = "3"


def cache_folder() -> Path:
    """Returns the folder of the kept figures."""
    return disk_cache.cache_folder() / "gpu-compiler"


def load_or_compile(hlo: bytes, target: str, version: str, compile_step: Callable[[], Compiled]) -> Compiled:
    """Returns the kept figures of a module, target and compiler version, or compiles and keeps them."""
    key = hashlib.sha256("\0".join((_FORM, version, target)).encode() + b"\0" + hlo).hexdigest()
    file = cache_folder() / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # missing, or damaged: compile again
        return Compiled.from_json(json.loads(file.read_text()))
    compiled = compile_step()
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, not the answer
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(compiled.to_json(), stream)
        Path(name).replace(file)
    return compiled
