"""A scikit-learn estimator that fits and predicts in processes of its own."""

import pickle
from typing import Any

import cloudpickle

from memfit.searching.isolating import run_apart
from memfit.searching.trial_server import Shared

_ANSWERS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform")


def isolate_estimator(estimator: Any, shared: Shared) -> Any:
    """Returns a copy of an estimator that fits and predicts in processes of its own.

    It has the parameters of the original, and scikit-learn clones it as it does the original. A `fit` that runs out
    of memory or whose process dies raises, which a search scores with its `error_score`. What was fitted is kept
    as bytes, and comes back to this process when one of its attributes is asked for, such as `model_`.

    Args:
        estimator: The estimator, such as `keras.wrappers.SKLearnClassifier`.
        shared: The memory of each process.
    """
    kind = type(estimator)
    names = [name for name in _ANSWERS if hasattr(kind, name)]
    members = {
        **{name: _answer_with(name) for name in names},
        "__doc__": kind.__doc__,
        "_plain_class": kind,
        "_shared": shared,
    }
    isolated: Any = type(f"Isolated{kind.__name__}", (_Isolated, kind), members)
    made = isolated.__new__(isolated)
    vars(made).update(vars(estimator))
    return made


class _Isolated:
    """What an isolated estimator has before the methods of its own class."""

    _plain_class: Any
    _shared: Any

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Fits in a process of its own."""
        for name in [name for name in vars(self) if name.startswith("memfit_") or name.endswith("_")]:
            del vars(self)[name]  # by scikit-learn's convention these come from an earlier fit
        fitted, names, visible = run_apart(self._shared, _fit, (self._plain(), args, kwargs))
        vars(self).update(visible, memfit_fitted=fitted, memfit_names=names)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "memfit_fitted" in vars(self)

    def __getattr__(self, name: str) -> Any:
        # scikit-learn asks for many that are not there: only what is there is worth loading a model for.
        if name not in vars(self).get("memfit_names", ()):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(pickle.loads(vars(self)["memfit_fitted"]), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._plain(), self._shared, vars(self))

    def _plain(self) -> Any:
        plain = self._plain_class.__new__(self._plain_class)
        vars(plain).update(
            {name: value for name, value in vars(self).items() if not name.startswith("memfit_")}
        )
        return plain


def _answer_with(name: str) -> Any:
    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        fitted = vars(self).get("memfit_fitted")
        if fitted is None:  # the class's own says so best
            return getattr(self._plain(), name)(*args, **kwargs)
        return run_apart(self._shared, _call, (fitted, name, args, kwargs))

    answer.__name__, answer.__doc__ = name, f"Calls `{name}` of what was fitted, in a process of its own."
    return answer


def _rebuild(plain: Any, shared: Shared, state: dict[str, Any]) -> Any:
    made = isolate_estimator(plain, shared)
    vars(made).update(state)
    return made


def _fit(plain: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = set(vars(plain))
    plain.fit(*args, **kwargs)
    # What scikit-learn itself reads of an estimator, and no model is in.
    visible = {name: value for name, value in vars(plain).items() if name in ("classes_", "n_features_in_")}
    names = {name for name in set(vars(plain)) - before - set(visible) if name.endswith("_")}
    return cloudpickle.dumps(plain), names, visible


def _call(fitted: bytes, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return getattr(pickle.loads(fitted), name)(*args, **kwargs)
