"""Whether the GPU compiler is installed, and as which versions; nothing of it is imported to know."""

from importlib.metadata import PackageNotFoundError, version

from memfit.estimation.gpu_compiler.refusal import NotCompiled

_PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt")
INSTALL = "pip install 'memfit[gpu-compiler]'"


def compiler_version() -> str:
    """Returns the compiler's version, such as "jaxlib 0.10.2".

    Raises:
        NotCompiled: If it is not installed, or its parts do not belong together.
    """
    versions_of: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            versions_of[package] = version(package)
        except PackageNotFoundError:
            raise NotCompiled(
                f"the GPU compiler is not installed; {INSTALL} would give the compiler's own figures for this GPU"
            ) from None
    if len(set(versions_of.values())) > 1:
        versions = ", ".join(f"{package} {number}" for package, number in versions_of.items())
        raise NotCompiled(f"the compiler's parts are of different versions ({versions}); {INSTALL}")
    return f"jaxlib {versions_of['jaxlib']}"
