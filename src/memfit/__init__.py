"""memfit fits Keras 3 / TensorFlow training into the memory there is.

The public face: every name is loaded on first use, so that `import memfit` takes milliseconds and does not
import TensorFlow (which `memfit.configure` must come before).
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would double the start time

__version__ = "0.1.0"

if TYPE_CHECKING:
    from memfit import optimizers as optimizers
    from memfit.budgets.budget import Budget as Budget
    from memfit.budgets.budget import budget as budget
    from memfit.budgets.configuration import configure as configure
    from memfit.budgets.isolation import isolated as isolated
    from memfit.budgets.releasing import release as release
    from memfit.data.arrays import arrays as arrays
    from memfit.data.images import images as images
    from memfit.data.linting.lint import lint as lint
    from memfit.errors import InvalidInput as InvalidInput
    from memfit.errors import MemfitError as MemfitError
    from memfit.errors import ProcessDied as ProcessDied
    from memfit.errors import TooLate as TooLate
    from memfit.estimation.estimate import Estimate as Estimate
    from memfit.estimation.estimating import estimate as estimate
    from memfit.planning.does_not_fit import DoesNotFit as DoesNotFit
    from memfit.planning.explaining import explain as explain
    from memfit.planning.plan import Plan as Plan
    from memfit.planning.planning import plan as plan
    from memfit.reporting.timeline import plot as plot
    from memfit.scaling.fitting import evaluate as evaluate
    from memfit.scaling.fitting import fit as fit
    from memfit.scaling.fitting import predict as predict
    from memfit.searching.isolating import isolate as isolate
    from memfit.searching.trying import trials as trials
    from memfit.sizes import Size as Size
    from memfit.slimming.slimming import slim as slim
    from memfit.training.gradients import gradients as gradients
    from memfit.training.guard.events import OutOfMemory as OutOfMemory
    from memfit.training.leaks.watch import watch as watch
    from memfit.training.monitoring.monitoring import MemoryMonitor as MemoryMonitor
    from memfit.training.records.files import runs as runs
    from memfit.training.run import Run as Run

_HOME = {
    "Budget": "memfit.budgets.budget",
    "Estimate": "memfit.estimation.estimate",
    "DoesNotFit": "memfit.planning.does_not_fit",
    "InvalidInput": "memfit.errors",
    "MemfitError": "memfit.errors",
    "MemoryMonitor": "memfit.training.monitoring.monitoring",
    "OutOfMemory": "memfit.training.guard.events",
    "Plan": "memfit.planning.plan",
    "ProcessDied": "memfit.errors",
    "Run": "memfit.training.run",
    "Size": "memfit.sizes",
    "TooLate": "memfit.errors",
    "arrays": "memfit.data.arrays",
    "budget": "memfit.budgets.budget",
    "configure": "memfit.budgets.configuration",
    "evaluate": "memfit.scaling.fitting",
    "explain": "memfit.planning.explaining",
    "fit": "memfit.scaling.fitting",
    "gradients": "memfit.training.gradients",
    "images": "memfit.data.images",
    "estimate": "memfit.estimation.estimating",
    "isolate": "memfit.searching.isolating",
    "isolated": "memfit.budgets.isolation",
    "lint": "memfit.data.linting.lint",
    "optimizers": "memfit.optimizers",
    "plan": "memfit.planning.planning",
    "plot": "memfit.reporting.timeline",
    "predict": "memfit.scaling.fitting",
    "release": "memfit.budgets.releasing",
    "runs": "memfit.training.records.files",
    "slim": "memfit.slimming.slimming",
    "trials": "memfit.searching.trying",
    "watch": "memfit.training.leaks.watch",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'memfit' has no attribute {name!r}")
    home = import_module(_HOME[name])
    value = home if _HOME[name] == f"memfit.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: object) -> None:
    """Registers `%%memfit` in a notebook: what `%load_ext memfit` calls."""
    import_module("memfit.reporting.cell_magic").register(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
