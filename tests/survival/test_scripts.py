"""What is to happen when a module is imported happens then, and not when somebody only looks for the module."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from memfit.survival.scripts import after_import


def test_a_module_that_is_looked_for_and_imported_later_is_acted_on_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sought_and_imported.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    before, seen = list(sys.meta_path), []
    after_import("sought_and_imported", lambda module: seen.append(module.value))
    assert importlib.util.find_spec("sought_and_imported") is not None
    assert seen == []
    importlib.import_module("sought_and_imported")
    assert seen == [3]
    assert sys.meta_path == before
    del sys.modules["sought_and_imported"]
