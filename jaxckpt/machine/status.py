"""Status of targets: which can be compiled for here, and what to install for the others.

Nothing is loaded or started to answer: packages are looked up, and the attached devices are named only where jax
has opened them already.
"""

from dataclasses import dataclass

import jax

from jaxckpt import _compat
from jaxckpt._compilers import Compiler, compiler_for, install_command
from jaxckpt._units import format_bytes
from jaxckpt.machine.device_facts import Facts
from jaxckpt.machine.devices import attached_facts
from jaxckpt.machine.fact_files import known_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """Status of one target here.

    Attributes:
      name: For `Target`, without a topology.
      platform: "cuda", "tpu", "cpu", or "" where the attached device is not known yet.
      memory_bytes: Of one device; 0 where the attached device is not known yet.
      usable: True if it can be compiled for now.
      reason: Why, or why not, in a few words.
      install: What to type to make it usable; empty where it is, or where nothing would.
    """

    name: str
    kind: str
    description: str
    platform: str = ""
    memory_bytes: int = 0
    usable: bool
    reason: str
    install: str = ""

    def __str__(self) -> str:
        memory = format_bytes(self.memory_bytes) if self.memory_bytes else "?"
        install = f" ({self.install})" if self.install else ""
        sign = "yes" if self.usable else "no "
        return f"{sign} {self.name:<13} {memory:>10}  {self.description}: {self.reason}{install}"


def targets() -> tuple[TargetStatus, ...]:
    """Lists every target that has a name, "attached" first; starts no backend, and never fails.

    A user's own fact files are not listed.

    Example:
      >>> [status.name for status in targets()][:2]
      ['attached', 'a100-40']
    """
    compilers = {platform: compiler_for(platform) for platform in ("cuda", "tpu", "cpu")}
    named = (_named_status(name, facts, compilers[facts.platform]) for name, facts in known_facts().items())
    return (_attached_status(), *named)


def _named_status(name: str, facts: Facts, compiler: Compiler) -> TargetStatus:
    installed, needed = f"{compiler.package} {compiler.version}", compiler.needed_version
    reason, install = f"compiled by {installed}", ""
    if compiler.version is None:
        reason, install = f"{compiler.package} is not installed", install_command(facts.platform)
    elif not compiler.fits:
        reason, install = f"{installed} does not fit jaxlib {needed}", f'pip install "{compiler.package}=={needed}"'
    return TargetStatus(
        name=name,
        kind=name,
        description=facts.description,
        platform=facts.platform,
        memory_bytes=facts.device_memory_bytes,
        usable=compiler.fits,
        reason=reason,
        install=install,
    )


def _attached_status() -> TargetStatus:
    if not _compat.backends_are_initialised():
        return TargetStatus(
            name="attached",
            kind="attached",
            description="the default devices of this process",
            usable=True,
            reason="jax has not opened them yet",
        )
    facts = attached_facts()
    return TargetStatus(
        name="attached",
        kind=jax.local_devices()[0].device_kind,
        description=facts.description,
        platform=facts.platform,
        memory_bytes=facts.device_memory_bytes,
        usable=True,
        reason=f"{jax.device_count()} attached",
    )
