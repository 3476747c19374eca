"""Checkpoint files: whole or not at all, checked when read, two kept, and a full disk that stops nothing."""

import errno
import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from memfit.survival import checkpoint_files
from memfit.survival.checkpoint_files import Checkpoint, TornCheckpoint, read, write
from memfit.survival.checkpoints import CheckpointWriter, read_latest


def checkpoint(number: int = 0) -> Checkpoint:
    values = [np.full((300, 70), number, "float32"), np.array(number), np.ones(3, ml_dtypes.bfloat16)]
    return Checkpoint({"call": 0, "epoch": number, "batch": 1}, values, b"states")


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(checkpoint(3), tmp_path / "a.npz")
    found = read(tmp_path / "a.npz")
    assert found.facts == checkpoint(3).facts
    assert found.objects == b"states"
    for a, b in zip(found.arrays, checkpoint(3).arrays, strict=True):
        assert a.tobytes() == b.tobytes()
        assert a.shape == b.shape
    with np.load(tmp_path / "a.npz") as anybody:  # an open format
        assert anybody["00000"][0, 0] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("harm", ["cut", "flipped", "emptied"])
def test_a_file_that_is_not_what_was_written_is_refused_and_the_one_before_is_taken(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = CheckpointWriter(tmp_path, 0.0)
    assert writer.save_now(checkpoint(1))
    assert writer.save_now(checkpoint(2))
    last = sorted(tmp_path.iterdir())[-1]
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes({"cut": content[: len(content) // 2], "flipped": content, "emptied": b""}[harm])
    with pytest.raises(TornCheckpoint, match="is damaged"):
        read(last)
    with caplog.at_level(logging.WARNING):
        found = read_latest(tmp_path)
    assert found is not None
    assert found.facts["epoch"] == 1
    assert "damaged" in caplog.text


def test_every_byte_of_the_values_is_checked(tmp_path: Path) -> None:
    small = Checkpoint({"a": 1}, [np.arange(8.0)], b"x")
    write(small, tmp_path / "a.npz")
    content = (tmp_path / "a.npz").read_bytes()
    begin = content.index(np.arange(8.0).tobytes())
    for place in range(begin, begin + 64):
        harmed = bytearray(content)
        harmed[place] ^= 1
        (tmp_path / "b.npz").write_bytes(harmed)
        with pytest.raises(TornCheckpoint):
            read(tmp_path / "b.npz")


def test_two_are_kept_and_numbers_go_on_in_the_next_process(tmp_path: Path) -> None:
    for number in range(3):
        CheckpointWriter(tmp_path, 0.0).save_now(checkpoint(number))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "checkpoint-000002.npz",
        "checkpoint-000003.npz",
    ]


def test_the_next_one_is_due_when_the_last_one_has_cost_less_than_a_twentieth(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, 0.0)
    assert writer.is_due()
    writer.save(checkpoint(), 0.5)  # half a second of copying: nothing for ten seconds
    writer.wait()
    assert writer.cost >= 0.5
    assert not writer.is_due()


def test_a_full_disk_costs_a_warning_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = CheckpointWriter(tmp_path, 0.0)
    writer.save_now(checkpoint(1))

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files.os, "fsync", full)
        assert not writer.save_now(checkpoint(2))
        assert not writer.save_now(checkpoint(3))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000001.npz"]
    assert caplog.text.count("No space left") == 1
    assert writer.save_now(checkpoint(4))
    found = read_latest(tmp_path)
    assert found is not None
    assert found.facts["epoch"] == 4
