"""Which cluster a process belongs to: TF_CONFIG, Slurm's variables, and what is wrong with them."""

import json

import pytest

from memfit.errors import InvalidInput
from memfit.scaling.cluster import find_cluster
from memfit.scaling.slurm import expand_counts, expand_nodes


def _tf_config(cluster, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}


def test_a_process_without_variables_is_by_itself():
    assert find_cluster({}) is None
    assert find_cluster(_tf_config({})) is None
    assert find_cluster(_tf_config({"worker": ["a:1"]}, index=0)) is None


def test_a_chief_comes_before_the_workers():
    config = _tf_config({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, type="worker", index="1")
    cluster = find_cluster(config)
    assert (cluster.rank, cluster.count, cluster.addresses) == (2, 3, ("a:1", "b:1", "c:1"))
    assert cluster.source == "TF_CONFIG"


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"TF_CONFIG": "{worker"}, "not JSON"),
        ({"TF_CONFIG": "[]"}, "no `cluster`"),
        (_tf_config({"worker": "a:1"}, index=0), "list of addresses"),
        (_tf_config({"worker": ["a:1", "b:1"]}), "which `task`"),
        (_tf_config({"worker": ["a:1", "b:1"]}, type="worker", index=2), "worker 2 of 2"),
        (_tf_config({"worker": ["a:1", "b:1"]}, type="chief", index=0), "'chief'"),
        (_tf_config({"worker": ["a:1", "a:1"]}, index=0), "two of its tasks have the address a:1"),
        (_tf_config({"worker": ["a:1", "b"]}, index=0), "'b' is no address"),
        (_tf_config({"worker": ["a:1"], "ps": ["b:1"]}, index=0), "no parameter servers"),
    ],
)
def test_a_wrong_tf_config_says_what_is_wrong_with_it(environment, says):
    with pytest.raises(InvalidInput, match=says):
        find_cluster(environment)


def test_a_task_of_slurm_writes_the_tf_config_that_all_tasks_agree_on():
    environment = dict(SLURM)
    cluster = find_cluster(environment)
    assert (cluster.rank, cluster.count, cluster.source) == (2, 3, "Slurm")
    hosts = [address.split(":")[0] for address in cluster.addresses]
    assert hosts == ["gpu08", "gpu08", "gpu09"]
    assert len(set(cluster.addresses)) == 3
    other = find_cluster({**SLURM, "SLURM_PROCID": "0"})
    assert other.addresses == cluster.addresses
    assert find_cluster(environment) == cluster  # now from TF_CONFIG


def test_a_batch_script_of_slurm_is_one_process():
    outside = {name: text for name, text in SLURM.items() if "STEP" not in name}
    assert find_cluster({**outside, "SLURM_NTASKS": "3"}) is None


def test_slurm_tasks_that_see_all_gpus_of_a_node_take_one_each():
    environment = {**SLURM, "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "4,5"}
    find_cluster(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "5"


def test_slurm_variables_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidInput, match="where each task"):
        find_cluster({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x2)"})


def test_slurm_lists_are_expanded():
    assert expand_nodes("gpu[01-02,7],login,a[1-2]b[3-4]") == [
        "gpu01", "gpu02", "gpu7", "login", "a1b3", "a1b4", "a2b3", "a2b4",
    ]  # fmt: skip
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
