import json
from pathlib import Path

import pytest

from memfit.cli.main import main
from memfit.data.disk_cache import entries, open_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path / "caches"))
    for name in ("a.jpg", "b.jpg"):
        open_cache(tmp_path / "caches", [str(tmp_path / name)], (4, 4, 3), {})
    return tmp_path / "caches"


def test_caches_are_listed_with_size_and_source(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls"]) == 0
    shown = capsys.readouterr().out
    for entry in entries(folder):
        assert f"{entry.key}  176 B  0 of 1  just now  {folder.parent}" in shown
    assert "2 caches, 352 B of at most" in shown
    assert main(["cache", "ls", "--json"]) == 0
    assert [entry["images"] for entry in json.loads(capsys.readouterr().out)] == [1, 1]


def test_a_cache_is_removed_by_the_start_of_its_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, gone = entries(folder)
    assert main(["cache", "rm", gone.key[:10]]) == 0
    assert [entry.key for entry in entries(folder)] == [kept.key]
    assert main(["cache", "rm", "nonsense"]) == 2
    assert "matches 0" in capsys.readouterr().err
    assert main(["cache", "rm"]) == 2
    assert main(["cache", "rm", "--all"]) == 0
    assert entries(folder) == []


def test_a_cache_in_use_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_cache(folder, [str(folder.parent / "a.jpg")], (4, 4, 3), {})
    assert store is not None
    assert main(["cache", "rm", "--all"]) == 0
    (used,) = entries(folder)
    assert main(["cache", "rm", used.key]) == 2
    assert "in use" in capsys.readouterr().err
