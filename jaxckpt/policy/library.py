"""Policies by name: files, and those that come with jaxckpt.

Read after `policy`.
"""

from pathlib import Path

from jaxckpt._errors import PolicyError, did_you_mean
from jaxckpt.policy.policy import Policy


def load_policy(path: str | Path) -> Policy:
    """Reads a policy from a TOML file, or a ready policy by its name.

    Args:
      path: Of a file; or the name of a ready policy (`jaxckpt.policies()`).

    Raises:
      PolicyError: There is no such file or name, or the file is no policy.
    """
    path = Path(path)
    found = path if path.is_file() else _folder() / f"{path}.toml"
    try:
        return Policy.from_toml(found.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(
            f"load_policy({str(path)!r}): there is no such policy.",
            got=str(path),
            needed=f"a TOML file, or one of {', '.join(policies())}{did_you_mean(str(path), policies())}",
            advice="check the spelling, or write the policy: see policies/ for examples",
            problems=(str(error),),
        ) from error
    except PolicyError as error:
        error.add_note(f"in {found}")
        raise


def policies() -> tuple[str, ...]:
    """The names of the ready policies."""
    return tuple(sorted(file.stem for file in _folder().glob("*.toml")))


def _folder() -> Path:
    """The folder of the policies that come with jaxckpt: in the package, or next to the package in a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "policies_data"
    return shipped if shipped.is_dir() else package.parent / "policies"
