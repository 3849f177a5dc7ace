"""Policies by name (files, and those that come with jaxckpt), and by digest, by which a mark in a name stack names one.

A trace holds text alone (name stacks), and outlives the call that traced it. The digest is a function of the policy's
content: equal policies have one digest in every process. The registry of digests only grows, by one entry for each
policy. Read after `policy`.
"""

import hashlib
import itertools
import os
from pathlib import Path
from typing import overload

from jaxckpt._errors import PolicyError, did_you_mean
from jaxckpt.policy.policy import Policy

_COUNT = itertools.count()
_BY_DIGEST: dict[str, Policy] = {}


@overload
def as_policy(policy: Policy | str | Path) -> Policy: ...
@overload
def as_policy(policy: Policy | str | Path | None) -> Policy | None: ...
def as_policy(policy: Policy | str | Path | None) -> Policy | None:
    """A policy that is given as an object, by its name or by a file; None for none.

    Raises:
      PolicyError: As `load_policy`; or the object is no policy, such as one of `jax.checkpoint_policies`.

    Example:
      >>> as_policy("dots") == load_policy("dots") == as_policy(load_policy("dots"))
      True
    """
    if isinstance(policy, str | Path):
        return load_policy(policy)
    if policy is None or isinstance(policy, Policy):
        return policy
    is_reading = isinstance(getattr(policy, "policy", None), Policy)
    raise PolicyError(
        f"a {type(policy).__name__} is no policy of jaxckpt.",
        got=repr(policy)[:200],
        needed=f"a jaxckpt.Policy, a TOML file, or one of {', '.join(policies())}",
        advice="its attribute .policy"
        if is_reading
        else 'a name such as "dots"; jax.checkpoint takes the functions of jax.checkpoint_policies',
        problems=(),
    )


def load_policy(path: str | Path) -> Policy:
    """Reads a policy from a TOML file, or a ready policy by its name.

    Args:
      path: Of a file; or the name of a ready policy (`jaxckpt.policies()`).

    Raises:
      PolicyError: There is no such file or name, or the file is no policy.

    Example:
      >>> import jaxckpt
      >>> policy = jaxckpt.load_policy("dots")
      >>> isinstance(policy, jaxckpt.Policy)
      True
    """
    is_text = "\n" in str(path)
    path = Path(path)
    found = path if os.path.isfile(path) else _folder() / f"{path}.toml"  # of a long text `Path.is_file` is an OSError
    try:
        return Policy.from_toml(found.read_text())
    except (OSError, UnicodeDecodeError) as error:
        got = f"{str(path).splitlines()[0]} ..." if is_text else str(path)
        read_text = "jaxckpt.Policy.from_toml(text), which reads the text of a policy"
        raise PolicyError(
            f"load_policy({got!r}): there is no such policy.",
            got=got,
            needed=f"a TOML file, or one of {', '.join(policies())}{did_you_mean(got, policies())}",
            advice=read_text if is_text else "check the spelling, or write the policy: see policies/ for examples",
            problems=(str(error),),
        ) from error
    except PolicyError as error:
        error.add_note(f"in {found}")
        raise


def policies() -> tuple[str, ...]:
    """The names of the ready policies.

    Example:
      >>> import jaxckpt
      >>> "dots" in jaxckpt.policies()
      True
    """
    return tuple(sorted(file.stem for file in _folder().glob("*.toml")))


def _folder() -> Path:
    """The folder of the policies that come with jaxckpt: in the package, or next to the package in a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "policies_data"
    return shipped if shipped.is_dir() else package.parent / "policies"


def digest_of(policy: Policy) -> str:
    """The digest of a policy, the same for equal policies."""
    digest = hashlib.sha256(policy.to_toml().encode()).hexdigest()[:12]
    _BY_DIGEST.setdefault(digest, policy)
    return digest


def new_mark(policy: Policy) -> str:
    """The mark that a scope with a policy writes into a trace: the policy's digest, and a number for each entry.

    Example:
      >>> policy = Policy(name="mine")
      >>> policy_of_mark(new_mark(policy)) == policy, new_mark(policy) == new_mark(policy)
      (True, False)
    """
    return f"{digest_of(policy)}.{next(_COUNT)}"


def policy_of_mark(mark: str) -> Policy:
    """The policy of a mark.

    Raises:
      PolicyError: No scope of this process was made with it.
    """
    digest, _, _ = mark.partition(".")
    if digest not in _BY_DIGEST:
        raise PolicyError(
            f"a mark in this step names the policy {digest}, which this process does not know.",
            got=f"policies of this process: {', '.join(sorted(_BY_DIGEST)) or 'none'}",
            needed="a step that was traced in this process",
            advice="trace the step here, instead of loading its trace",
        )
    return _BY_DIGEST[digest]
