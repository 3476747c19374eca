"""Private names of Keras, TensorFlow and JAX are used in `memfit.compat` alone, each in one place."""

import ast
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import keras
import pytest

from compat import test_keras_layers
from compat.canaries import CANARIES
from compat.private_names import COMPAT, SOURCE, private_uses
from memfit.compat.tf_profiles import ALLOCATION, DEALLOCATION
from memfit.compat.tf_runtime import ARENA_ALLOCATOR


def test_private_names_of_other_libraries_are_used_in_compat_only():
    outside = [str(use) for use in private_uses() if use.file.parent != COMPAT]
    assert not outside, "Wrap these in memfit.compat, with a canary in tests/compat:\n" + "\n".join(outside)


def test_tensorflows_own_texts_are_in_compat_only():
    texts = (ARENA_ALLOCATOR, ALLOCATION, DEALLOCATION, "Single-threaded executor")
    outside = [
        f"{file}: {text}"
        for file in SOURCE.rglob("*.py")
        if file.parent != COMPAT
        for text in texts
        if f'"{text}"' in file.read_text()
    ]
    assert not outside


def test_each_private_name_has_one_wrapper():
    places = defaultdict(set)
    for use in private_uses():
        if use.file.parent == COMPAT:
            library = use.file.stem.partition("_")[0]
            places[library, use.name, use.written].add(f"{use.file.stem}.{use.function}")
    several = {name: sorted(where) for (_, name, _), where in places.items() if len(where) > 1}
    assert not several


def test_each_wrapper_has_a_canary_that_tells_its_private_names():
    # Those of jax_compiler are in the environment of memfit[gpu-compiler].
    files = [*COMPAT.glob("keras_*.py"), *COMPAT.glob("tf_*.py")]
    for file in files:
        import_module(f"compat.test_{'tf_runtime' if file.stem == 'tf_profiles' else file.stem}")
    wrappers = {f"{file.stem}.{name}" for file in files for name in _public_names(file)}
    assert not wrappers - {canary.wrapper for canary in CANARIES}
    told = " ".join(name for canary in CANARIES for name in canary.names)
    used = {use.name.rpartition(".")[2] for use in private_uses() if use.file in files}
    assert not [name for name in sorted(used) if name not in told]


def test_a_canary_says_which_name_of_which_version_is_gone(monkeypatch):
    monkeypatch.delattr(keras.Layer, "_flatten_layers")
    gone = f"keras {keras.__version__}: Layer._flatten_layers is gone or has changed; " + re.escape(
        "memfit.compat.keras_layers.all_layers needs it"
    )
    with pytest.raises(pytest.fail.Exception, match=gone):
        test_keras_layers.test_all_layers_are_found_the_model_first_and_nested_ones_too(keras.Sequential())


def _public_names(file: Path) -> list[str]:
    """The functions and constants that a file defines for others."""
    tree = ast.parse(file.read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    constants = [
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for name in ast.walk(node.targets[0])
        if isinstance(name, ast.Name)
    ]
    return [name for name in functions + constants if not name.startswith("_")]
