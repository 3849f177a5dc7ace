"""A compile-only target needs a compiler of its own, which comes as a Python package beside jax.

NVIDIA's is the CUDA plugin of jax (no driver, no CUDA, no GPU needed to compile), Google's is libtpu; the
processor's is in jaxlib. Here we only look at what is installed: nothing is imported, loaded or started, so this
can be asked anywhere and never fails. `topology` does the loading.
"""

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass

from jaxckpt import _compat
from jaxckpt._errors import MissingPackageError, VersionMismatchError

_EXTRAS = {"cuda": "gpu-targets", "tpu": "tpu-targets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The package that compiles for a platform, its version if it is installed, and the only one that fits, if any."""

    package: str
    version: str | None
    needed_version: str | None

    @property
    def fits(self) -> bool:
        """True if it is installed in a version that fits."""
        if self.version is None:
            return False
        return self.needed_version is None or _release(self.version) == _release(self.needed_version)


def compiler_for(platform: str) -> Compiler:
    """Looks for the compiler of a platform ("cuda", "tpu", else jaxlib's own), without loading it.

    Example:
      >>> compiler_for("cpu").package
      'jaxlib'
    """
    jaxlib_version = importlib.metadata.version("jaxlib")
    if platform == "tpu":
        installed = importlib.util.find_spec("libtpu") is not None
        version = _version("libtpu") or "unknown" if installed else None
        return Compiler(package="libtpu", version=version, needed_version=None)
    if platform != "cuda":
        return Compiler(package="jaxlib", version=jaxlib_version, needed_version=None)
    plugin = _compat.cuda_plugin()
    if plugin is None:
        return Compiler(package="jax-cuda13-plugin", version=None, needed_version=jaxlib_version)
    package = f"jax-{plugin[0].removeprefix('xla_')}-plugin"
    version = _worst_version((package, package.replace("-plugin", "-pjrt")), jaxlib_version)
    return Compiler(package=package, version=version, needed_version=jaxlib_version)


def require_compiler(platform: str, *, target: str) -> Compiler:
    """The installed compiler of a platform; an error for `target` where there is none that fits jaxlib."""
    compiler = compiler_for(platform)
    if compiler.version is None:
        raise MissingPackageError(
            f'target "{target}" needs the compiler of its platform, which is not installed.',
            got=f"no package {compiler.package}",
            needed=_wanted(compiler),
            advice=install_command(platform),
            package=compiler.package,
        )
    if not compiler.fits:
        raise VersionMismatchError(
            f'target "{target}" cannot be compiled for: {compiler.package} is of another version than jaxlib.',
            got=f"{compiler.package} {compiler.version}",
            needed=_wanted(compiler),
            advice=f'pip install "{compiler.package}=={compiler.needed_version}"',
            package=compiler.package,
            version=compiler.version,
            needed_version=compiler.needed_version,
        )
    return compiler


def install_command(platform: str) -> str:
    """Command that installs the compiler of a platform; "" where it comes with jax.

    Example:
      >>> install_command("cuda")
      'pip install "jaxckpt[gpu-targets]"'
    """
    return f'pip install "jaxckpt[{_EXTRAS[platform]}]"' if platform in _EXTRAS else ""


def _wanted(compiler: Compiler) -> str:
    version = f" {compiler.needed_version}" if compiler.needed_version else ""
    return f"{compiler.package}{version} (no device, driver or CUDA installation is needed)"


def _worst_version(packages: tuple[str, ...], needed: str) -> str:
    """Of the packages that make the plugin, the version that does not fit, if any; else the first known."""
    versions = [version for version in map(_version, packages) if version is not None]
    unfit = [version for version in versions if _release(version) != _release(needed)]
    return (unfit or versions or ["unknown"])[0]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...] | str:
    """The numbers that jaxlib compares (`jaxlib.plugin_support`): "0.12.0.1.dev3+cuda" gives (0, 12, 0, 1)."""
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else version
