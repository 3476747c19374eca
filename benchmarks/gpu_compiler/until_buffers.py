"""Compiling a step only until its buffers are assigned, for a benchmark of hundreds of steps.

XLA writes down the optimized module and where its buffers are before it makes the kernels' code, which takes more
than half of the time and changes no figure. memfit itself lets the compiler end: a GPU it has no kernels for is
refused only then.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memfit.compat import jax_compiler
from memfit.estimation.gpu_compiler import compiling
from memfit.estimation.gpu_compiler.compiled import Compiled

# The last of a module's files before its code is made, and how long it has to be there: it is written in one go.
_LAST, _SETTLED = "memory-usage-report", 1.0
_SECONDS = 600.0
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)$", re.MULTILINE)


def compiled_until_buffers(hlo: bytes, target: str) -> Compiled:
    """Does what `compiling.compile_hlo` does, and leaves the rest to it where it comes to nothing."""
    for flags in (compiling._FLAGS, f"{compiling._FLAGS} {compiling._NO_TRITON}"):
        if (found := _tried(hlo, target, flags)) is not None:
            return found
    return compiling.compile_hlo(hlo, target)


def _tried(hlo: bytes, target: str, flags: str) -> Compiled | None:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="memfit-xla-") as folder:
        place = Path(folder)
        (place / "step.hlo").write_bytes(hlo)
        (place / "target").write_text(target)
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "XLA_FLAGS": f"{flags} --xla_dump_to={folder}",
        }
        child = subprocess.Popen(
            [sys.executable, __file__, folder], env=environment, stderr=subprocess.DEVNULL
        )
        try:
            while child.poll() is None and time.perf_counter() - begin < _SECONDS:
                if any(time.time() - file.stat().st_mtime > _SETTLED for file in _reports(place)):
                    return _figures(place, time.perf_counter() - begin)
                time.sleep(0.2)
        finally:
            child.kill()
            child.wait()
    return None


def _reports(folder: Path) -> list[Path]:
    """The step's own report; small modules that XLA makes of its parts may have theirs too."""
    texts = sorted(folder.glob("*before_optimizations.txt"), key=os.path.getsize)
    step = texts[-1].name.removesuffix("before_optimizations.txt") if texts else "-"
    return list(folder.glob(f"{step}*-{_LAST}.txt"))


def _figures(folder: Path, seconds: float) -> Compiled:
    (report,) = _reports(folder)
    stem = str(report).removesuffix(f"-{_LAST}.txt")
    assignment = Path(f"{stem}-buffer-assignment.txt").read_text()
    found = [(int(size), kind) for size, kind in _ALLOCATION.findall(assignment)]
    return Compiled(
        arguments=sum(size for size, kind in found if kind.startswith("parameter")),
        outputs=sum(size for size, kind in found if "maybe-live-out" in kind),
        alias=sum(size for size, kind in found if kind.startswith("parameter") and "maybe-live-out" in kind),
        temporaries=sum(size for size, kind in found if kind.startswith("preallocated-temp")),
        seconds=seconds,
        **compiling.read_module(Path(f"{stem}.txt").read_text(), str(folder)),
    )


if __name__ == "__main__":
    given = Path(sys.argv[1])
    step = jax_compiler.stablehlo((given / "step.hlo").read_bytes())
    jax_compiler.compile_for(step, (given / "target").read_text())
