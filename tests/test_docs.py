"""The Python blocks of the README and the docs run, with a small model and memory in the place of the reader's own.

A block that needs a GPU or XLA's compiler for one says so behind its language (```python needs-gpu): it is
compiled, and what it uses of memfit is looked up.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import memfit
from prepared import run_forked

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What readers have before the block: names that the text around it speaks of.
PRELUDE = """
import memfit, keras, numpy as np, tensorflow as tf
from pathlib import Path
keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((16, 16, 3)),
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(2, activation="softmax"),
    ]
)
model.compile("sgd", "sparse_categorical_crossentropy")
loss_fn = keras.losses.SparseCategoricalCrossentropy()
x, y = np.random.default_rng(0).normal(size=(32, 16, 16, 3)).astype("float32"), np.arange(32) % 2
xv, yv, val = x[:8], y[:8], (x[:8], y[:8])
any_dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
for kind in ("cats", "dogs"):
    for number in range(10):
        photo = Path("photos", kind, f"{number}.png")
        if not photo.exists():
            photo.parent.mkdir(parents=True, exist_ok=True)
            tf.io.write_file(str(photo), tf.io.encode_png(np.full((20, 20, 3), number, "uint8")))
def image_model():
    model = keras.Sequential([layers.GlobalAveragePooling2D(), layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model
dataset = memfit.images("photos", size=(20, 20), batch_size=1, seed=1)
dataset = dataset[0] if isinstance(dataset, tuple) else dataset
"""


def run_all(blocks: dict[str, str], folder: Path) -> dict[str, str]:
    """Runs blocks, one behind the other, in a folder; what each failed with."""
    import contextlib
    import io
    import os
    import traceback

    os.chdir(folder)
    outcomes = {}
    for name, code in blocks.items():
        names: dict[str, Any] = {"__name__": "docs"}
        try:
            exec(PRELUDE, names)
            if "memfit.images(" in code:
                names["model"] = names["image_model"]()
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, name, "exec"), names)
            outcomes[name] = ""
        except BaseException:
            outcomes[name] = traceback.format_exc()
    return outcomes


@dataclass(frozen=True)
class Block:
    """A Python block: the page and line it begins at, what it needs, its text."""

    name: str
    needs: str
    code: str


def _blocks() -> list[Block]:
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(f"{page.relative_to(ROOT)}:{line}", match[1].strip(), match[2]))
    return found


BLOCKS = _blocks()


# The pages that everyone reads first; `make test-all` runs the blocks of the others, too.
FIRST_PAGES = ("README.md:", "docs/index.md:")
FIRST = [block for block in BLOCKS if not block.needs and block.name.startswith(FIRST_PAGES)]
OTHERS = [block for block in BLOCKS if not block.needs and block not in FIRST]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _run(FIRST, tmp_path_factory.mktemp("docs"))


@pytest.fixture(scope="module")
def other_outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _run(OTHERS, tmp_path_factory.mktemp("docs"))


def _run(blocks: list[Block], folder: Path) -> dict[str, str]:
    """What became of each: one process runs them all, and forks record, as imports take longer than most."""
    # Each code once: the first page of the site has the README's.
    first = {block.code: block.name for block in reversed(blocks)}
    codes = {name: _with_small_memory(code) for code, name in first.items()}
    found = run_forked(run_all, codes, folder, TF_ENABLE_ONEDNN_OPTS="0")
    return {block.name: found[first[block.code]] for block in blocks}


def _with_small_memory(code: str) -> str:
    """The block in a memory that its small model clearly fits, or whose largest batch is not one of millions."""
    return re.sub("[28]GiB", "64MiB" if '"max"' in code or "max_batch" in code else "1GiB", code)


@pytest.mark.timeout(1800)  # all of them run in the time of the first
@pytest.mark.parametrize("block", FIRST, ids=lambda block: block.name)
def test_a_block_of_the_first_pages_runs(outcomes: dict[str, str], block: Block) -> None:
    assert not outcomes[block.name], outcomes[block.name]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", OTHERS, ids=lambda block: block.name)
def test_a_block_runs(other_outcomes: dict[str, str], block: Block) -> None:
    assert not other_outcomes[block.name], other_outcomes[block.name]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.needs], ids=lambda block: block.name)
def test_a_block_that_cannot_run_here_uses_names_that_exist(block: Block) -> None:
    assert block.needs in ("needs-gpu", "needs-gpu-compiler")
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "memfit":
            assert getattr(memfit, node.attr) is not None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "est":
            assert hasattr(memfit.Estimate, node.attr) or node.attr in memfit.Estimate.__annotations__


def test_blocks_are_found() -> None:
    assert len(FIRST) >= 2
    assert len(OTHERS) >= 8


def test_the_docs_import_the_public_face_only() -> None:
    internal = [block.name for block in BLOCKS if re.search(r"^\s*from memfit\.|import memfit\.", block.code)]
    assert not internal
