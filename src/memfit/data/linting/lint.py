"""`memfit.lint`: what in a tf.data pipeline costs memory, time or data."""

import json
import os
from dataclasses import replace
from typing import Any

import tensorflow as tf

from memfit.budgets.budget import budget
from memfit.compat.tf_datasets import idle_conversions, inputs_of, is_device_copy
from memfit.data.linting import memory_rules, order_rules, speed_rules, value_rules
from memfit.data.linting.findings import Finding, Findings
from memfit.data.linting.stages import held_tensors, read_stages
from memfit.data.linting.view import View
from memfit.errors import InvalidInput
from memfit.sizes import Size

_RULES = (*memory_rules.RULES, *order_rules.RULES, *speed_rules.RULES, *value_rules.RULES)


def lint(*datasets: Any, batch_memory: int | str | None = None, host: int | str | None = None) -> Findings:
    """Returns what is worth changing in tf.data pipelines, without running them.

    Args:
        *datasets: One or more `tf.data.Dataset`s; several are also checked against one another.
        batch_memory: The bytes of one batch, where the pipeline's shapes do not say (images of any size).
        host: The memory of the host to judge by, such as "16GiB"; None: this one's.

    Returns:
        The findings: an object that prints as a list with places, bytes or time at stake, and fixes.

    Raises:
        InvalidInput: If something else than a dataset was given.

    Example:
        >>> import tensorflow as tf
        >>> lint(tf.data.Dataset.range(10).repeat(2).shuffle(10))
        repeat-before-shuffle: The shuffle comes after the repeat: some samples come twice before others come once.
          at     stage 3 shuffle
          stake  the order of the samples, and statistics per epoch
          fix    ds.shuffle(n).repeat(...)
    """
    memory = Size(host) if host is not None else budget().host.total
    batch = None if batch_memory is None else Size(batch_memory)
    findings: list[Finding] = []
    cache_files: set[str] = set()
    for number, dataset in enumerate(datasets, 1):
        view = look_at(dataset, memory, batch, frozenset(cache_files))
        for rule in _RULES:
            told = (replace(finding, dataset=number) for finding in rule(view))
            findings += [finding for finding in told if finding not in findings]
        cache_files |= {text for stage in view.of_kind("cache") for text in stage.texts if text}
    return Findings(tuple(findings), len(datasets))


def look_at(
    dataset: Any,
    host: int = 0,
    batch_memory: int | None = None,
    caches_of_others: frozenset[str] = frozenset(),
) -> View:
    """Returns a pipeline as rules see it.

    Raises:
        InvalidInput: If it is no dataset.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidInput("memfit.lint takes tf.data datasets", received=type(dataset).__name__)
    options = dataset.options()
    # A copy to the device cannot be written as a graph: what comes before it can.
    readable, behind_device_copy = _split_at_device_copy(dataset)
    source_bytes = held_tensors(readable)
    too_large = source_bytes >= memory_rules.LARGE_TENSOR
    return View(
        # Reading would write the array into the graph: the rest of the pipeline is judged once it is out.
        [] if too_large else read_stages(readable),
        host,
        batch_memory,
        options,
        _workers(),
        set() if too_large else idle_conversions(readable),
        source_bytes,
        behind_device_copy,
        caches_of_others,
    )


def _split_at_device_copy(dataset: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Returns the dataset before a copy to a device, and the names of the stages behind it; None without a copy."""
    names: list[str] = []
    part = dataset
    while part is not None:
        inputs = inputs_of(part)
        if is_device_copy(part):
            return inputs[0], tuple(reversed(names))
        names.append(type(part).__name__.strip("_").removesuffix("Dataset").lower())
        part = inputs[0] if len(inputs) == 1 else None
    return dataset, None


def _workers() -> int:
    """The workers that TF_CONFIG names; two, the fewest that share anything, without it."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    except ValueError:
        return 2
    return max(2, len(cluster.get("worker", [])) + len(cluster.get("chief", [])))
