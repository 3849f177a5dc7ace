"""All readers behind one function: `read_policy(config, system="deepspeed")`.

Read after the readers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxckpt._errors import PolicyError, closest_names
from jaxckpt.policy.readers.deepspeed import policy_from_deepspeed
from jaxckpt.policy.readers.maxtext import policy_from_maxtext
from jaxckpt.policy.readers.megatron import policy_from_megatron
from jaxckpt.policy.readers.mindspore import policy_from_mindspore
from jaxckpt.policy.readers.reading import Reading

READERS: Mapping[str, Callable[..., Reading]] = {
    "deepspeed": policy_from_deepspeed,
    "maxtext": policy_from_maxtext,
    "megatron": policy_from_megatron,
    "mindspore": policy_from_mindspore,
}
"""The reader of each system."""


def read_policy(config: Any, system: str, **settings: Any) -> Reading:
    """Reads another system's configuration as a policy, with notes on settings that no policy can express.

    Args:
      config: Of that system: a mapping, the path of a file, or its text; for Megatron, flags.
      system: "deepspeed", "maxtext", "megatron" or "mindspore" (mindformers too).
      **settings: As that system's reader takes them: `jaxckpt.policy.readers.policy_from_deepspeed` and so on.

    Returns:
      The policy, how settings were understood, and what was not carried over; printing it shows all three.

    Raises:
      PolicyError: There is no such system, or the configuration is invalid; all problems are numbered.

    Example:
      >>> print(read_policy('{"activation_checkpointing": {}, "train_batch_size": 8}', "deepspeed"))
      Read from deepspeed: policy "deepspeed": regions of layers: recompute; the rest: save
      Understood: a layer is a scope whose name differs from others in a number alone ...
      Carried over in full.
      Of no concern to checkpointing: train_batch_size
    """
    reader = READERS.get(system)
    if reader is None:
        closest = closest_names(system, READERS) or ("deepspeed",)
        raise PolicyError(
            f"read_policy(..., system={system!r}): there is no reader for this system.",
            got=repr(system),
            needed=f"one of {', '.join(READERS)}",
            advice=f"system={closest[0]!r}",
            problems=(f"no reader for {system!r}",),
        )
    return reader(config, **settings)
