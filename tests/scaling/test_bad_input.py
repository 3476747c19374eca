"""Jobs that cannot be right are refused before the first step, by name."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import memfit
from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.scaling import launching
from memfit.scaling.conditions import explain_mixed_samples
from memfit.scaling.launching import rank_environments
from memfit.survival.settings import RunSettings
from memfit.survival.supervising import supervise
from prepared import run_forked
from scaling.several_ranks import run_ranks


def _train(samples: int = 8, units: int = 1, rate: float = 0.1, **more: Any) -> str:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    try:
        memfit.fit(model, np.ones((samples, 2)), np.ones((samples, units)), shuffle=False, verbose=0, **more)
    except InvalidInput as error:
        return str(error)
    return ""


def _differ() -> list[str]:
    from memfit.scaling.communicator import join_cluster

    ranks = join_cluster()
    assert ranks is not None
    return [
        _train(samples=8 + ranks.rank, batch_size=4),
        _train(units=1 + ranks.rank, batch_size=4),
        _train(rate=0.1 * (1 + ranks.rank), batch_size=4),
        _train(batch_size=4, epochs=1 + ranks.rank),
        _train(batch_size=1),
    ]


def test_ranks_that_differ_say_in_what() -> None:
    first, second = run_ranks(_differ)
    assert first == second  # all ranks end, and say the same
    for said, name in zip(
        first,
        ("number of samples or batches", "model", "optimizer", "epochs", "at least one sample"),
        strict=True,
    ):
        assert name in said, said
    assert "8 on rank 0, 9 on rank 1" in first[0]


def _join() -> str:
    from memfit.scaling.communicator import join_cluster

    try:
        join_cluster()
    except InvalidInput as error:
        return str(error)
    return ""


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = {"worker": [address, "127.0.0.1:9"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
        said = run_forked(_join, TF_CONFIG=config, TF_ENABLE_ONEDNN_OPTS="0")
    assert address in said
    assert "Check that the port is free" in said


def test_each_rank_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "gpus", lambda environment: ["GPU:0", "GPU:1"])
    with pytest.raises(InvalidInput, match="2 visible GPUs"):
        rank_environments(3)
    visible = [each["CUDA_VISIBLE_DEVICES"] for each in rank_environments(2, environment={})]
    assert visible == ["0", "1"]
    named = rank_environments(2, environment={"CUDA_VISIBLE_DEVICES": "5, 7"})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in named] == ["5", "7"]


def test_without_gpus_each_rank_has_an_arena_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "gpus", lambda environment: [])
    ranks = rank_environments(2, "64MiB", environment={})
    assert [each["TF_CPU_BFC_MEM_LIMIT_IN_MB"] for each in ranks] == ["64", "64"]
    addresses = {json.dumps(json.loads(each["TF_CONFIG"])["cluster"]) for each in ranks}
    assert len(addresses) == 1
    assert "TF_CPU_BFC_MEM_LIMIT_IN_MB" not in rank_environments(2, environment={})[0]


def test_ranks_are_not_started_inside_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "TF_CONFIG", rank_environments(2)[1]["TF_CONFIG"])
    with pytest.raises(InvalidInput, match="rank 1 of 2 from TF_CONFIG"):
        supervise("train.py", [], RunSettings(ranks=2))
    monkeypatch.setitem(os.environ, "TF_CONFIG", "nonsense")
    with pytest.raises(InvalidInput, match="not JSON"):
        supervise("train.py", [])


def test_no_rank_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--ranks must be at least 1"):
        rank_environments(0)


@keras.saving.register_keras_serializable("memfit tests")
class _Centred(keras.layers.Layer):
    """Looks at all samples of a batch."""

    def call(self, x: Any) -> Any:
        return x - keras.ops.mean(x, axis=0, keepdims=True)


def _sum_of_errors(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.sum(keras.ops.square(y_true - y_pred))


@pytest.mark.parametrize(
    ("layers", "loss", "reason"),
    [
        ([_Centred()], "mse", "depends on the samples it is batched with"),
        ([], _sum_of_errors, "in one batch and"),
        ([keras.layers.Dropout(0.5)], "mse", None),
    ],
)
def test_what_looks_at_whole_batches_is_near_on_ranks_and_refused_where_exact_is_asked_for(
    layers: list[Any], loss: Any, reason: str | None
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss)
    data = (np.random.default_rng(0).normal(size=(8, 2)), np.ones((8, 1)), None)
    remarks = list(explain_mixed_samples(model, data, Fidelity.NEAR, 2))
    if reason is None:
        assert remarks == []
        assert list(explain_mixed_samples(model, data, Fidelity.EXACT, 2)) == []
        return
    (remark,) = remarks
    assert remark.startswith("near, on 2 ranks: ")
    assert reason in remark
    with pytest.raises(InvalidInput, match="Ranks compute parts of a batch"):
        list(explain_mixed_samples(model, data, Fidelity.EXACT, 2))
