"""Rules about values: pixels that are scaled twice, or not at all although it looks like it."""

from collections.abc import Iterator

from memfit.data.linting.findings import Finding
from memfit.data.linting.stages import Stage
from memfit.data.linting.view import RESIZERS, View

_WHOLE_RANGES = (255.0, 127.5, 256.0)


def scaling_that_does_nothing(view: View) -> Iterator[Finding]:
    """`convert_image_dtype` on floats: after `resize`, which makes floats of 0 to 255, it changes nothing."""
    for stage in view.of_kind("map"):
        resized = any(s.ops() & RESIZERS for s in (stage, *stage.upstream()))
        if stage.function in view.idle_conversions and resized and not _scales(stage):
            yield Finding(
                "scaling-does-nothing",
                stage.place,
                "convert_image_dtype after resize changes nothing: the image is float already, and stays 0 to 255.",
                "training on inputs 255 times as large as meant",
                "convert_image_dtype before resize, or image / 255 after it",
            )


def scaled_twice(view: View) -> Iterator[Finding]:
    """Two divisions by 255 on the way."""
    ends = [stage for stage in view.stages if not view.after(stage)]
    for end in ends:
        scaling = [stage for stage in (end, *end.upstream()) for _ in range(_scales(stage))]
        if len(scaling) > 1:
            yield Finding(
                "scaled-twice",
                scaling[0].place,
                "Pixels are divided by 255 twice on the way (convert_image_dtype counts).",
                "training on inputs 255 times as small as meant",
                "Keep one of the two",
            )


def _scales(stage: Stage) -> int:
    """Counts the divisions by the range of a byte in a stage's function."""
    by_name = {node.name: node for node in stage.nodes}
    count = 0
    for node in stage.nodes:
        inputs = [by_name.get(name.split(":")[0].lstrip("^")) for name in node.inputs]
        values = [each.value for each in inputs if each is not None and each.value]
        if node.op in ("RealDiv", "Div"):
            count += any(value in _WHOLE_RANGES for value in values)
        elif node.op == "Mul":
            count += any(abs(1 / value - whole) < 0.01 for value in values for whole in _WHOLE_RANGES)
    return count


RULES = (scaling_that_does_nothing, scaled_twice)
