"""Runs Keras's own tests of training as they are and under `memfit run`, and compares them test by test.

    make test-keras

They come from the source distribution of the installed Keras version, which pip downloads.
"""

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FOLDERS = ("trainers/trainer_test.py", "callbacks", "optimizers", "models")
# Of Keras's own conftest.py, which is not in the distribution, what the tests import.
CONFTEST = """import keras, pytest

def skip_if_backend(given, reason):
    return pytest.mark.skipif(keras.backend.backend() == given, reason=reason)
"""
# Runs pytest as a script that knows nothing of memfit.
SCRIPT = "import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n"


def download(folder: Path) -> Path:
    """Downloads and unpacks Keras's source; returns its folder."""
    version = importlib.metadata.version("keras")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", "keras", f"keras=={version}", "-d", str(folder)]
    subprocess.run(command, check=True)
    with tarfile.open(folder / f"keras-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    source = folder / f"keras-{version}"
    (source / "conftest.py").write_text(CONFTEST)
    trainer = source / "keras" / "src" / "trainers" / "trainer_test.py"
    trainer.write_text(trainer.read_text().replace("\nimport jax\n", "\n", 1))  # for the backend that is JAX
    return source


def run(command: list[str], source: Path, name: str) -> dict[str, str]:
    """Runs the tests; returns what became of each."""
    report = source / f"{name}.xml"
    files = [str(source / "keras" / "src" / folder) for folder in FOLDERS]
    options = ["-q", "-p", "no:cacheprovider", "-o", "python_files=*_test.py", f"--junitxml={report}"]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
    with (source / f"{name}.log").open("w") as log:
        subprocess.run(
            [*command, *options, *files], cwd=source, env=environment, stdout=log, stderr=log, check=False
        )
    if not report.exists():
        sys.exit(f"The tests did not run to their end:\n{(source / f'{name}.log').read_text()[-4000:]}")
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failure = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        text = "passed" if failure is None else f"{failure.tag}: {failure.get('message', '')}"
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = text
    return outcomes


def main() -> None:
    """Compares, prints the differences, and ends with 1 if there are any."""
    with tempfile.TemporaryDirectory(prefix="memfit-keras-") as folder:
        source = download(Path(folder))
        script = source / "run_tests.py"
        script.write_text(SCRIPT)
        stock = run([sys.executable, str(script)], source, "stock")
        ours = run([sys.executable, "-m", "memfit", "run", "--strict", str(script)], source, "memfit")
    different = [
        name for name in stock if ours.get(name, "did not run").split(":")[0] != stock[name].split(":")[0]
    ]
    for name in different:
        print(f"{name}\n  stock:  {stock[name][:300]}\n  memfit: {ours.get(name, 'did not run')[:600]}")
    passed = sum(text == "passed" for text in stock.values())
    broken = [name for name, text in stock.items() if text.startswith("error")]
    if broken:
        sys.exit(f"Some tests could not be run as they are: {', '.join(broken)}")
    version = importlib.metadata.version("keras")
    print(
        f"Keras {version}: {len(stock)} tests, {passed} pass as they are; {len(different)} differ under memfit run"
    )
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
