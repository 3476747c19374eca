"""What `release` says of models that are still there: real ones, in an arena, and in a real notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import memfit
from memfit.budgets.releasing import Held
from prepared import in_arena


def _make(name: str):
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name=name)
    model.compile("sgd", "mse")
    return model


def _module_with(**variables: object) -> None:
    """Lets a module of the user's, named `mine`, have some variables and nothing else."""
    import types

    module = types.ModuleType("mine")
    module.__file__ = "/home/somebody/mine.py"
    vars(module).update(variables)
    sys.modules["mine"] = module


def _holders() -> dict[str, list[str]]:
    return {held.model: list(held.by) for held in memfit.release().held}


def test_every_kind_of_holder_is_named_in_plain_words() -> None:
    def plants() -> dict[str, list[str]]:
        import functools

        import numpy as np

        x = np.zeros((4, 4), "float32")

        def close(net: object):
            return lambda: net

        def count(net: object):
            yield net

        def default(net: object = _make("in_default")) -> object:
            return net

        class Study:
            best = None
            shared = _make("in_class")

            def __init__(self) -> None:
                self.runs = {"first": [1, _make("deep")]}

        class Slotted:
            __slots__ = ("net",)

        slotted, generator = Slotted(), count(_make("in_generator"))
        slotted.net = _make("in_slot")
        next(generator)
        closure = close(_make("in_closure"))
        closure.__name__ = "f"
        _module_with(
            named=_make("named"),
            history=_make("in_history").fit(x, x[:, :2], verbose=0),
            models=[_make("in_list")],
            by_name={"a": _make("in_dict")},
            f=closure,
            default=default,
            study=Study(),
            Study=Study,
            slotted=slotted,
            part=functools.partial(print, _make("in_partial")),
            method=_make("in_method").predict,
            generator=generator,
            looped=_make("twice"),
        )
        sys.modules["mine"].again = {"twice": sys.modules["mine"].looped}
        del closure, default, Study, Slotted, slotted, generator
        return _holders()

    found = in_arena(plants, memory="200MiB")
    assert found["named"] == ["`named` in module mine"]
    assert found["in_history"] == ["`history` in module mine holds `in_history` (History.model)"]
    assert found["in_list"] == ["a list `models` in module mine (`models[0]`)"]
    assert found["in_dict"] == ["a dict `by_name` in module mine (`by_name['a']`)"]
    assert found["in_closure"] == ["a closure of function `f`, variable `net` (`f` in module mine)"]
    assert found["in_default"] == [
        "`default` in module mine holds `in_default` (a default argument of `default`)"
    ]
    assert found["deep"] == ["`study` in module mine holds `deep` (`study.runs['first'][1]`)"]
    assert found["in_class"] == ["`Study` in module mine holds `in_class` (Study.shared)"]
    assert found["in_slot"] == ["`slotted` in module mine holds `in_slot` (Slotted.net)"]
    assert found["in_partial"] == ["`part` in module mine holds `in_partial` (partial)"]
    assert found["in_method"] == ["`method` in module mine holds `in_method` (method.__self__)"]
    assert found["in_generator"] == ["`generator` in module mine: variable `net` of `count`"]
    assert found["twice"] == [
        "`looped` in module mine",
        "a dict `again` in module mine (`again['twice']`)",
    ]
    assert not any(name.startswith("functional") for name in found), "inside of a Sequential"


def test_local_variables_and_the_last_error_are_holders_and_the_report_is_none() -> None:
    def holds() -> tuple[list[str], list[str], str, bool, list[str]]:
        import gc
        import weakref

        def fails() -> None:
            broken = _make("broken")
            raise ValueError(broken.name)

        net = _make("local")
        alive = weakref.ref(net)
        try:
            fails()
        except ValueError as error:
            sys.last_value = error
        report = memfit.release()
        found = {held.model: list(held.by) for held in report.held}
        asked = [text for held in memfit.release(net).held for text in held.by]
        del net
        gc.collect()  # the report is still here, and so is every frame that was looked at
        gone = alive() is None
        del sys.last_value
        return found["local"], found["broken"], repr(report), gone, [*asked, *_holders()]

    local, broken, told, gone, rest = in_arena(holds, memory="200MiB")
    assert len(local) == 1
    assert local[0].startswith("`net` in the running function `holds` (test_holders.py:")
    assert broken == ["`sys.last_value` (the last error, ValueError): variable `broken` of `fails`"]
    assert "`local` (" in told
    assert f"- {local[0]}" in told
    assert gone
    assert rest == [rest[0]]
    assert "`net` in the running function" in rest[0]


def test_a_model_that_something_unknown_holds_is_told_and_the_search_ends_in_time() -> None:
    def holds() -> tuple[list[Held], bool, bool]:
        import ctypes

        from memfit.budgets.holders import Search

        net = _make("hidden")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(net))  # as a library written in C may hold it
        key = id(net)
        del net
        report = memfit.release()
        _module_with(wide=[[number] for number in range(10**6)])
        search = Search({key: "hidden"}, seconds=0.0)
        search.run()
        return list(report.held), report.searched_all, search.complete

    (held,), complete, in_no_time = in_arena(holds, memory="200MiB")
    assert (held.model, held.by) == ("hidden", ())
    assert held.size >= 4 * (4 * 2 + 2)
    assert complete
    assert not in_no_time


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(memfit.InvalidInput, match=r"memfit\.release takes a Keras model"):
        memfit.release([1, 2])


_CELLS = {
    "make": "import os; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nimport keras, memfit\n"
    "def make(name): return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name=name)",
    "show": "make('shown')",
    "keep": "kept = make('kept')",
    "fail": "def train():\n    net = make('failed')\n    raise MemoryError('no')\ntrain()",
    "report": "print([(held.model, held.by) for held in memfit.release().held])",
}
_EXECUTE = """
import sys, nbclient, nbformat
from jupyter_client.manager import AsyncKernelManager
notebook = nbformat.read(sys.argv[1], 4)
kernel = AsyncKernelManager(transport="ipc", kernel_name="python3")
nbclient.NotebookClient(notebook, km=kernel, timeout=600, allow_errors=True).execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_outputs_and_errors_of_a_real_notebook_are_named(tmp_path: Path) -> None:
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "id": name,
            "source": code,
        }
        for name, code in _CELLS.items()
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "in.ipynb").write_text(json.dumps(notebook))
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(memfit.__file__).parents[1]), *sys.path])
    command = [sys.executable, "-W", "ignore", "-c", _EXECUTE, "in.ipynb", "out.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (output,) = json.loads((tmp_path / "out.ipynb").read_text())["cells"][-1]["outputs"]
    found = dict(eval("".join(output["text"])))
    assert found["kept"] == ("`kept` in __main__",)
    assert "Out[2]" in found["shown"]
    assert set(found["shown"]) <= {"Out[2]", "_", "__", "___"}
    assert found["failed"] == ("`sys.last_value` (the last error, MemoryError): variable `net` of `train`",)
