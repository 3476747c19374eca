"""`memfit run --ray`: the ranks of a job on a Ray cluster, started by Ray Train's `TensorflowTrainer`.

Ray places one worker for each rank and tells it its `TF_CONFIG`. The worker runs the supervisor of `memfit run` in
a process of its own: signals are handled in main threads, and Ray's workers give none. So a rank that dies is
started again by its supervisor without Ray; a worker or node that dies is Ray's to replace.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput
from memfit.scaling.cluster import find_cluster
from memfit.survival.run_directory import directory_of, has_checkpoint, read_settings
from memfit.survival.scripts import check_script, end_with_parent
from memfit.survival.settings import RunSettings

_TASK = "MEMFIT_RAY_TASK"
_FAILURES = 3  # workers or nodes that Ray replaces


def run_on_ray(
    script: str | Path,
    arguments: Sequence[str] = (),
    settings: RunSettings = RunSettings(),  # noqa: B008 (frozen)
    *,
    resume: bool = False,
    kept: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> int:
    """Runs a training script on the workers of a Ray cluster to its end.

    All nodes have to see the script under the same path, as on a shared file system.

    Args:
        script: The script, which need not know memfit.
        arguments: Its arguments.
        settings: What to do with it; `ranks` is the number of workers.
        resume: Whether to go on where an earlier run was stopped.
        kept: The settings that are then those of the earlier run.
        tell: Takes what there is to say, a line at a time.

    Returns:
        0 where the script has run to its end on all ranks, otherwise 1.

    Raises:
        InvalidInput: If Ray is not installed, there is no such script, or there are not enough GPUs or CPUs.
    """
    check_script(Path(script))
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.tensorflow import TensorflowTrainer
    except ImportError as error:
        raise InvalidInput(
            "`--ray` needs Ray Train", received=str(error), remedy="Install it: pip install 'memfit[ray]'"
        ) from error
    own = directory_of(Path(script), arguments, Path.cwd())
    if resume:
        settings = _keep_settings(own, settings, kept)
    ray.init(ignore_reinit_error=True)
    there = ray.cluster_resources()
    kind = "GPU" if there.get("GPU") else "CPU"
    if there.get(kind, 0) < settings.ranks:
        raise InvalidInput(
            f"Each rank needs its own {kind} on the Ray cluster",
            received=f"--ranks {settings.ranks}, and {there.get(kind, 0):.0f} {kind}s",
            remedy=f"Ask for at most {there.get(kind, 0):.0f} ranks",
        )
    # All ranks draw the same numbers, also where Ray starts them again at other addresses.
    seed = random.SystemRandom().randrange(2**31) if settings.seed is None else settings.seed
    task = {
        "script": str(Path(script).resolve()),
        "arguments": list(arguments),
        "settings": {**asdict(settings), "ranks": 1, "seed": seed},
        "directory": str(Path.cwd()),
    }
    if not resume:  # from here on, what ranks find there is of this job
        for old in own.parent.glob(f"{own.name}-rank*"):
            shutil.rmtree(old, ignore_errors=True)
    trainer = TensorflowTrainer(
        _run_rank,
        train_loop_config={"task": json.dumps(task)},
        scaling_config=ScalingConfig(num_workers=settings.ranks, use_gpu=kind == "GPU"),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=_FAILURES)),
    )
    try:
        trainer.fit()
    except Exception as error:  # whatever Ray makes of a worker's failure
        tell(f"The job on Ray has failed: {str(error).strip().splitlines()[-1]}")
        return 1
    return 0


def _keep_settings(own: Path, settings: RunSettings, kept: Sequence[str]) -> RunSettings:
    """Returns the settings with those that are kept as they were; each rank has a directory of its own."""
    of_ranks = [path for path in own.parent.glob(f"{own.name}-rank*") if path.name[-1].isdigit()]
    if not of_ranks:
        return settings
    earlier = replace(read_settings(min(of_ranks)), ranks=len(of_ranks))
    return replace(settings, **{name: getattr(earlier, name) for name in kept})


def _run_rank(config: dict[str, Any]) -> None:
    """What each of Ray's workers runs: a supervisor in a process of its own."""
    environment = {**os.environ, _TASK: config["task"]}
    environment.pop("TF_USE_LEGACY_KERAS", None)  # Ray sets it, and TensorFlow would then look for Keras 2
    code = subprocess.run(
        [sys.executable, "-m", "memfit.survival.ray_job"], env=environment, check=False
    ).returncode
    if code != 0:
        raise RuntimeError(f"a rank ended with exit code {code}")


def _supervise() -> int:
    """Runs the supervisor of one rank: where Ray has started the ranks again, it goes on from what was kept."""
    from memfit.survival.supervising import supervise

    end_with_parent()  # a worker that Ray ends leaves no rank behind
    task = json.loads(os.environ.pop(_TASK))
    os.chdir(task["directory"])
    own = directory_of(Path(task["script"]), task["arguments"], Path.cwd(), find_cluster())
    return supervise(
        task["script"],
        task["arguments"],
        RunSettings(**task["settings"]),
        resume=has_checkpoint(own),
        tell=_tell,
    )


def _tell(line: str) -> None:
    sys.stderr.write(f"memfit: {line}\n")


if __name__ == "__main__":
    sys.exit(_supervise())
