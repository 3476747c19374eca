"""Reading the text of a compiled module: its kernels with what they compute and move, and what its buffers hold."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from memfit.estimation.gpu_compiler.compiled import Kernel, Living
from memfit.estimation.gpu_compiler.memory_map import Temporary

_SHAPE = re.compile(r"\b(pred|bf16|[suf]\d+\w*|c64|c128)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)"
)
# Names for values that exist already: no kernel runs for them.
_FREE = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
        "replica-id", "opt-barrier", "async-done", "async-update", "copy-done",
    }
)  # fmt: skip
_CONVOLUTIONS = ("__cudnn$conv",)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str
    root: bool

    def attribute(self, pattern: str) -> str:
        """Returns the first group of a pattern in what follows the operands, or an empty text."""
        match = re.search(pattern, self.rest)
        return match[1] if match else ""

    @property
    def called(self) -> list[str]:
        return [name for group in _CALLED.findall(self.rest) for name in _NAME.findall(group)]

    @property
    def convolution(self) -> bool:
        target = self.attribute(r'custom_call_target="([^"]*)"')
        return self.opcode == "convolution" or target.startswith(_CONVOLUTIONS)


@dataclass
class Module:
    """A scheduled module, by computation."""

    entry: str = ""
    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)

    def kernels(self) -> tuple[Kernel, ...]:
        """Returns the kernels a run of the module starts, equal ones together."""
        counts = Counter(kernel for kernel in self._run(self.entry) if kernel.flops or kernel.bytes)
        return tuple(replace(kernel, count=count) for kernel, count in counts.items())

    def convolutions(self) -> Iterator[tuple[str, int]]:
        """Yields the convolutions, each with the bytes of its operands and results."""
        for body in self.computations.values():
            yield from ((i.name, self._moved(i)) for i in body if i.convolution)

    def parameters(self) -> int:
        """Returns how many buffers the module gets."""
        return sum(instruction.opcode == "parameter" for instruction in self.computations[self.entry])

    def living(self, temporaries: Iterable[Temporary]) -> tuple[Living, ...]:
        """Returns temporaries with the ops they belong to and their shapes, largest first."""
        known = {i.name: i for body in self.computations.values() for i in body}
        living = []
        for temporary in temporaries:
            instruction = known.get(temporary.name)
            if instruction is not None:
                op = instruction.attribute(r'op_name="([^"]*)"')
                shapes = (m[0] for m in _SHAPE.finditer(instruction.shape) if _bytes(m[0]) == temporary.bytes)
                living.append(Living(temporary.bytes, op, next(shapes, "")))
        return tuple(sorted(living, key=lambda one: -one.bytes))

    def _run(self, computation: str) -> Iterator[Kernel]:
        for instruction in self.computations.get(computation, ()):
            opcode, called = instruction.opcode, instruction.called
            if opcode in _FREE:
                continue
            if opcode == "while":
                # XLA writes down how often a loop runs where it knows it; counted once where it does not.
                trips = int(instruction.attribute(r'"known_trip_count":\{"n":"(\d+)"') or 1)
                for part in called:
                    yield from list(self._run(part)) * trips
            elif opcode in {"call", "async-start"}:
                if called:  # a call of the runtime, as TensorFlow 2.19's XLA makes on a CPU, has none
                    yield from self._run(called[0])
            elif opcode == "conditional":
                branches = [list(self._run(branch)) for branch in called]
                yield from max(branches, key=lambda kernels: sum(k.bytes for k in kernels), default=[])
            else:
                yield Kernel(self._flops(instruction), self._moved(instruction), self._dtype(instruction))

    def _operand(self, instruction: Instruction, index: int) -> str:
        return self.shapes.get(instruction.operands[index], "") if len(instruction.operands) > index else ""

    def _flops(self, instruction: Instruction) -> int:
        """Multiplications and additions of matrix products and convolutions; the rest is bound by memory."""
        if instruction.convolution:
            return self._convolution_flops(instruction)
        if instruction.opcode == "dot":
            contracted = instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
            return self._product_flops(instruction, [int(d) for d in contracted.split(",") if d])
        config = instruction.attribute(r"backend_config=(\{.*\})\s*$")
        if instruction.opcode == "custom-call" and "__cublas" in instruction.rest and config:
            numbers = json.loads(config).get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
            return self._product_flops(
                instruction, [int(d) for d in numbers.get("lhs_contracting_dimensions", [])]
            )
        return sum(self._flops(i) for name in instruction.called for i in self.computations.get(name, ()))

    def _product_flops(self, instruction: Instruction, contracted: list[int]) -> int:
        sizes = _sizes(self._operand(instruction, 0))
        return 2 * math.prod(_sizes(instruction.shape)) * math.prod(sizes[d] for d in contracted)

    def _convolution_flops(self, instruction: Instruction) -> int:
        labels = instruction.attribute(r"dim_labels=\w+_(\w+)->")
        shapes = [self._operand(instruction, 0), self._operand(instruction, 1), instruction.shape]
        if "BackwardInput" in instruction.rest:
            output, kernel = shapes[0], shapes[1]
        elif "BackwardFilter" in instruction.rest:
            output, kernel = shapes[1], shapes[2]
        else:
            output, kernel = shapes[2], shapes[1]
        sizes = _sizes(kernel)
        if "o" not in labels or len(sizes) != len(labels):
            return 0
        return 2 * math.prod(_sizes(output)) * math.prod(sizes) // max(sizes[labels.index("o")], 1)

    def _dtype(self, instruction: Instruction) -> str:
        match = _SHAPE.search(self._operand(instruction, 0) or instruction.shape)
        return match[1] if match else "f32"

    def _moved(self, instruction: Instruction) -> int:
        """Bytes read and written: of a slice of a buffer only the slice."""
        body = {i.name: i for name in instruction.called for i in self.computations.get(name, ())}
        if instruction.opcode != "fusion" or not body:
            if instruction.opcode in {"dynamic-slice", "gather"}:
                return 2 * _bytes(instruction.shape)
            if instruction.opcode == "dynamic-update-slice":
                return 2 * _bytes(self._operand(instruction, 1))
            return _bytes(instruction.shape) + sum(
                _bytes(self.shapes.get(o, "")) for o in instruction.operands
            )
        read = sum(self._read(i, body) for i in body.values() if i.opcode == "parameter")
        return read + sum(self._written(i, body) for i in body.values() if i.root)

    def _read(self, parameter: Instruction, body: dict[str, Instruction]) -> int:
        users = [i for i in body.values() if parameter.name in i.operands]
        if users and all(i.operands[0] == parameter.name for i in users):
            if all(i.opcode in {"dynamic-slice", "gather"} for i in users):
                return sum(_bytes(i.shape) for i in users)
            if all(i.opcode == "dynamic-update-slice" for i in users):
                return 0  # written in place
        return _bytes(parameter.shape)

    def _written(self, root: Instruction, body: dict[str, Instruction]) -> int:
        if root.opcode == "tuple":
            return sum(self._written(body[o], body) for o in root.operands if o in body)
        if root.opcode == "bitcast" and root.operands and root.operands[0] in body:
            return self._written(body[root.operands[0]], body)
        if root.opcode == "dynamic-update-slice":
            return _bytes(self.shapes.get(root.operands[1], ""))
        return _bytes(root.shape)


def read(text: str) -> Module:
    """Reads a module as XLA prints it."""
    module, body = Module(), list[Instruction]()
    for line in text.splitlines():
        if line.rstrip().endswith("{") and not line.startswith((" ", "HloModule")):
            name = _NAME.search(line)
            body = module.computations.setdefault(name[1] if name else "", [])
            if line.startswith("ENTRY"):
                module.entry = name[1] if name else ""
        elif " = " in line and line.startswith("  "):
            instruction = _instruction(line.strip())
            body.append(instruction)
            module.shapes[instruction.name] = instruction.shape
    return module


def _instruction(line: str) -> Instruction:
    head, _, tail = line.partition(" = ")
    end = _closing(tail, 0) + 1 if tail.startswith("(") else tail.index(" ")
    shape, tail = tail[:end], tail[end:].lstrip()
    begin = tail.index("(")
    close = _closing(tail, begin)
    name = head.removeprefix("ROOT ").lstrip("%")
    operands = tuple(_NAME.findall(tail[begin:close]))
    return Instruction(name, shape, tail[:begin], operands, tail[close + 1 :], head.startswith("ROOT "))


def _closing(text: str, begin: int) -> int:
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return len(text)


def _sizes(shape: str) -> list[int]:
    """Dimensions of the first array in a shape."""
    match = _SHAPE.search(shape)
    return [int(size) for size in match[2].split(",") if size] if match else []


def _bytes(shape: str) -> int:
    total = 0.0
    for dtype, sizes in _SHAPE.findall(shape):
        total += math.prod(int(size) for size in sizes.split(",") if size) * _width(dtype)
    return int(total)


def _width(dtype: str) -> float:
    """Bytes of one value of a type such as "f32", "pred" or "c64"."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 1
