"""What a GPU is made of: public specifications, each GPU in a small file, and users' own beside them."""

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput

_OWN = Path(__file__).with_name("devices")
_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True)
class Architecture:
    """What all GPUs of a compute capability share (CUDA C++ Programming Guide, "Technical Specifications").

    Attributes:
        cores: Units for float32 in a streaming multiprocessor.
        threads: Resident threads of one.
        shared: Its shared memory in KiB; a block may opt in to 1 KiB less, before Ampere to all of it.
    """

    cores: int
    threads: int
    shared: int


ARCHITECTURES = {
    "7.0": Architecture(64, 2048, 96),
    "7.5": Architecture(64, 1024, 64),
    "8.0": Architecture(64, 2048, 164),
    "8.6": Architecture(128, 1536, 100),
    "8.9": Architecture(128, 1536, 100),
    "9.0": Architecture(128, 2048, 228),
    "10.0": Architecture(128, 2048, 228),
    "12.0": Architecture(128, 1536, 100),
}


def has_bfloat16(compute_capability: str) -> bool:
    """Says whether the tensor cores of a compute capability multiply bfloat16: from Ampere (8.0) on they do."""
    return int(compute_capability.partition(".")[0]) >= 8


@dataclass(frozen=True)
class Specs:
    """The public specifications of a GPU, as its file has them.

    Attributes:
        name: What people call it.
        memory_mib: Memory that the driver gives to programs.
        compute_capability: Such as "8.0".
        sms: Streaming multiprocessors.
        clock_mhz: Boost clock.
        bandwidth_gb_s: Of its memory, in 10**9 bytes a second.
        l2_mib: Its second cache.
        fp16_tflops: Dense products in float16 with float32 sums.
        tf32_tflops: The same in TF32; None where it has none.
        source: Where the figures are from.
    """

    name: str
    memory_mib: int
    compute_capability: str
    sms: int
    clock_mhz: int
    bandwidth_gb_s: float
    l2_mib: float
    fp16_tflops: float
    source: str
    tf32_tflops: float | None = None

    @property
    def architecture(self) -> Architecture:
        """What its compute capability says."""
        return ARCHITECTURES[self.compute_capability]

    def flops(self, dtype: str) -> float:
        """Peak operations a second of products in a type, with TF32 for float32 as TensorFlow has it by default."""
        if dtype == "f16" or (dtype == "bf16" and has_bfloat16(self.compute_capability)):
            return self.fp16_tflops * 1e12
        if dtype == "f32" and self.tf32_tflops is not None:
            return self.tf32_tflops * 1e12
        return 2e6 * self.sms * self.architecture.cores * self.clock_mhz

    @property
    def target(self) -> str:
        """The GpuTargetConfigProto, as text, that XLA compiles for."""
        major, minor = self.compute_capability.split(".")
        chip = self.architecture
        shared_of_block = chip.shared - 1 if int(major) >= 8 else chip.shared
        # From compute capability 9 on, frameworks compile for the accelerated feature set.
        features = " feature_extension: ACCELERATED_FEATURES" if int(major) >= 9 else ""
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {chip.threads}
  shared_memory_per_block: {48 * _KIB} shared_memory_per_core: {chip.shared * _KIB}
  shared_memory_per_block_optin: {shared_of_block * _KIB}
  core_count: {self.sms} fpus_per_core: {chip.cores}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: {int(self.bandwidth_gb_s * 10**9)} l2_cache_size: {int(self.l2_mib * _MIB)}
  clock_rate_ghz: {self.clock_mhz / 1000} device_memory_size: {self.memory_mib * _MIB}
  cuda_compute_capability {{ major: {major} minor: {minor}{features} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "NVIDIA {self.name}"
"""


def user_folder() -> Path:
    """Returns the folder whose *.toml files add GPUs, or change memfit's own."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "memfit" / "devices"


def all_specs() -> Iterator[Specs]:
    """Yields the specifications in memfit's files and then those in the user's folder.

    Raises:
        InvalidInput: If a file of the user's folder is invalid.
    """
    for folder in (_OWN, user_folder()):
        if folder.is_dir():
            for file in sorted(folder.glob("*.toml")):
                yield _read(file)


def _read(file: Path) -> Specs:
    try:
        data: dict[str, Any] = tomllib.loads(file.read_text())
        specs = Specs(**{"source": str(file), **data})
        specs.architecture  # noqa: B018 - a capability that is not known is an error of the file
        specs.target  # noqa: B018 - and so is a figure of the wrong kind
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"A GPU file must be TOML with the same fields as memfit's own files ({error})",
            received=str(file),
            remedy=f"Copy one from {_OWN} and change it",
        ) from error
    except KeyError as error:
        raise InvalidInput(
            f"memfit knows the compute capabilities {', '.join(ARCHITECTURES)}",
            received=f"{error.args[0]} in {file}",
        ) from error
    return specs
