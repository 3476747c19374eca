"""Who asked for the memory: the tensor, its layer and the phase of the training."""

import re
from dataclasses import dataclass
from math import prod

from memfit.sizes import Size

_TENSOR = re.compile(
    r"OOM when allocating tensor (?:with|of) shape ?\[(?P<shape>[\d,\s]*)\](?: and type (?P<dtype>\w+))?"
    r"(?: on (?P<device>\S+))?(?: by allocator (?P<allocator>\w+))?"
)
_NODE = re.compile(
    r"\[\[\{*(?:\{?function_node [^}]*\}\}\{\{)?node ([^\s}]+)|Detected at node '?([^\s']+?)'? defined"
)
_EAGER_OP = re.compile(r"\[Op:(\w+)\]")
# Keras 3 names the class, Keras 2 the layer.
_LAYER_CALL = re.compile(r"Exception encountered when calling (?:(\w+)\.call\(\)|layer \"([^\"]+)\")")
_HLO_OP = re.compile(r'op_name="([^"]+)"')
_DEFINED = re.compile(r"Detected at node.*?defined at.*?\n(?=\S)", re.DOTALL)
_XLA_TEXT = re.compile(r"Out of memory while trying to allocate|on device ordinal \d")
_XLA_NODE = re.compile(r"^(StatefulPartitionedCall(_\d+)?|cluster_\d.*)$")
# The bytes of one value of a type.
_BYTES = {
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
}
_OPTIMIZERS = (
    "adadelta|adafactor|adagrad|adam|adamax|adamw|ftrl|lamb|lion|loss_scale_optimizer|muon|nadam|rmsprop|sgd"
)
_UPDATE = re.compile(rf"^(training/)?({_OPTIMIZERS})(_\d+)?/", re.IGNORECASE)
_UPDATE_CODE = re.compile(r"\b(apply_gradients|_resource_apply\w*|_backend_update_step|update_step)\b")
_DATA = re.compile(r"IteratorGetNext|DatasetV?\d*\b|memory for the batch of component")
_BACKWARD = re.compile(r"gradient_tape/|(^|/)gradients/|Backprop|\w+Grad(V\d)?$")
_NUMPY_NAMES = {"float": "float32", "half": "float16", "double": "float64"}
# Keras 3 and Keras 2 functions and methods that say which phase a traced op belongs to.
_VALIDATION = re.compile(r"__inference_test_function|, in test_step\b")
_PREDICTION = re.compile(r"__inference_predict_function|, in predict_step\b")
# A frame of an optimizer's `build`, whose last lines are those of a variable that is made.
_STATE = re.compile(r"optimizers/\w+\.py\", line \d+, in build\b")
_BUILDING = re.compile(r"line \d+, in (build|build_wrapper|add_weight)\b")
# Marks of Keras 3; XLA writes the last one since TensorFlow 2.16, which comes with Keras 3.
_KERAS_3 = (
    "one_step_on_data",
    "multi_step_on_iterator",
    "keras/src/backend/tensorflow",
    "Autotuning failed for HLO",
)


@dataclass(frozen=True)
class Request:
    """What asked for memory; empty or None where the text does not say.

    Attributes:
        layer: The Keras layer, with its path inside nested models, or its class.
        op: TensorFlow's op.
        shape: The tensor's shape.
        dtype: Its type.
        phase: "forward", "backward", "update", "state" (of the optimizer), "validation", "prediction", "data",
            "building", "step" (the whole step, compiled by XLA as one program), or "".
    """

    layer: str = ""
    op: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    phase: str = ""

    @property
    def bytes(self) -> Size | None:
        """What the tensor takes."""
        if self.shape is None or self.dtype not in _BYTES:
            return None
        return Size(prod(self.shape) * _BYTES[self.dtype])

    def __str__(self) -> str:
        parts = [f"layer {self.layer}" if self.layer else "", self.op]
        if self.shape is not None:
            parts.append(f"tensor {list(self.shape)} {self.dtype}".rstrip())
        parts.append(_PHASES.get(self.phase, ""))
        return ", ".join(part for part in parts if part)


_PHASES = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "update": "in the optimizer's update",
    "state": "while the optimizer's state was made",
    "validation": "in validation",
    "prediction": "in prediction",
    "data": "in the input pipeline",
    "building": "while the weights were created",
    "step": "the whole step, which XLA runs as one program",
}


def tensor_of(text: str) -> tuple[tuple[int, ...] | None, str, str, str]:
    """Returns shape, type, device and allocator of the last tensor that a text says did not fit."""
    matches = list(_TENSOR.finditer(text))
    if not matches:
        return None, "", "", ""
    match = matches[-1]
    shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
    dtype = match["dtype"] or ""
    return shape, _NUMPY_NAMES.get(dtype, dtype), match["device"] or "", match["allocator"] or ""


def node_of(text: str) -> str:
    """Returns the graph node that failed last, or ""."""
    nodes = [first or second for first, second in _NODE.findall(text)] or _HLO_OP.findall(text)
    return nodes[-1] if nodes else ""


def read_request(text: str, op: str, *, keras_3: bool = False) -> Request | None:
    """Returns who asked, from an error's text and the op that the allocator named; None where neither says.

    Args:
        text: The text.
        op: What the allocator's line calls "requested by op", or "".
        keras_3: Whether it is known to come from Keras 3; otherwise the text has to tell.
    """
    keras_3 = keras_3 or any(mark in text for mark in _KERAS_3)
    shape, dtype, _, _ = tensor_of(text)
    node = node_of(text) or op.removeprefix("StatefulPartitionedCall/")
    called = _LAYER_CALL.findall(text)
    eager = [name for name in _EAGER_OP.findall(text) if not name.startswith("__inference")]
    phase = _phase(text, node, bool(called))
    if node and "/" in node and phase != "update":
        layer, name = layer_of(node, keras_3=keras_3), node.rpartition("/")[2]
    else:
        layer = next((name or f"of class {kind}" for kind, name in reversed(called)), "")
        name = "" if phase == "step" else node.rpartition("/")[2] or (eager[-1] if eager else "")
    request = Request(layer, name, shape, dtype, phase)
    return None if request == Request() else request


def _phase(text: str, node: str, in_a_layer: bool) -> str:
    stacks = _DEFINED.findall(text + "\n.")
    definition = stacks[-1] if stacks else text
    if _DATA.search(node) or "[Op:IteratorGetNext]" in text or "memory for the batch of component" in text:
        return "data"
    if _VALIDATION.search(definition):
        return "validation"
    if _PREDICTION.search(definition):
        return "prediction"
    if _UPDATE.match(node) or (stacks and _UPDATE_CODE.search(definition)):
        return "update"
    if _BACKWARD.search(node):
        return "backward"
    if _XLA_NODE.match(node):
        return "step"
    if "/" in node or in_a_layer:
        return "forward"
    if not node and _XLA_TEXT.search(text):
        return "step"
    if _STATE.search(text):
        return "state"
    return "building" if _BUILDING.search(text) else ""


def layer_of(node: str, *, keras_3: bool) -> str:
    """Returns the path of the Keras layer that a graph node belongs to, without the model's own name.

    Keras 3 opens a scope "<name>_<number>" for every layer it calls and plain ones for its functions
    ("convolution"); Keras 2's scopes are the layers' names, and TensorFlow's own begin with a capital.

    Example:
        >>> layer_of("gradient_tape/net_1/block_1/conv2d_1_2/convolution/Conv2D", keras_3=True)
        'block/conv2d_1'
        >>> layer_of("model/conv2d_1/Relu", keras_3=False)
        'conv2d_1'
    """
    scopes = node.split("/")[:-1]
    while scopes and scopes[0] in ("gradient_tape", "StatefulPartitionedCall", "while", "body"):
        scopes = scopes[1:]
    if keras_3:
        layers = []
        for scope in scopes:
            match = re.fullmatch(r"(.+)_\d+", scope)
            if match is None:
                break
            layers.append(match[1])
    else:
        layers = [scope for scope in scopes if not scope[0].isupper()]
    return "/".join(layers[1:] if len(layers) > 1 else layers)
