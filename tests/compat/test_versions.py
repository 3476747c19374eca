"""A version of Keras or TensorFlow that memfit does not know is told in one sentence, and once."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import memfit
from memfit.compat.versions import SUPPORTED

# Packages are looked up by their metadata: a folder of it on the path stands for an installed version.
SCRIPT = """
import sys
import memfit
assert not any(name in sys.modules for name in ("tensorflow", "memfit.compat", "importlib.metadata"))
memfit.budget
print("tensorflow" in sys.modules)
from memfit.budgets.isolation import run_isolated
import memfit.compat
print(run_isolated(lambda: __import__("memfit.compat") and 7, (), environment={}))
"""


def run_with(folder: Path, **versions: str) -> subprocess.CompletedProcess[str]:
    for package, version in versions.items():
        metadata = folder / f"{package}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    path = os.pathsep.join([str(folder), str(Path(memfit.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}  # the process that memfit starts sees the same versions
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        (
            {"keras": "3.16.0", "tensorflow": "2.21.0"},
            "memfit was not tested with Keras 3.16.0, and uses private APIs that may differ there. "
            "Install a tested version: pip install 'keras>=3.12,<3.16'",
        ),
        ({"keras": "3.11.3", "tensorflow": "2.22.0rc1"}, "Keras 3.11.3 and TensorFlow 2.22.0rc1"),
        ({"keras": "3.15.9", "tensorflow": "2.19.1"}, ""),
    ],
)
def test_an_unsupported_version_is_told_once_before_tensorflow_is_imported(tmp_path, versions, message):
    done = run_with(tmp_path, **versions)
    assert done.stdout.split() == ["False", "7"], done.stderr
    assert message in done.stderr
    assert done.stderr.count("UserWarning") == (1 if message else 0)  # not again by the other process


def test_the_packages_metadata_and_the_readme_have_the_same_bounds():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    bounds = {f">={least},<{beyond}" for least, beyond in SUPPORTED.values()}
    for extra in ("cpu", "cuda"):
        requirements = project["optional-dependencies"][extra]
        assert {re.sub(r"^[\w\[\]-]+", "", text) for text in requirements} == bounds
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name, (least, beyond) in SUPPORTED.items():
        major, minor = beyond.split(".")
        assert f"{name} {least} to {major}.{int(minor) - 1}" in readme
