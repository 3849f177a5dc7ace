"""Readers of other systems' configurations, as policies, with notes on settings that no policy can express.

Read in this order: `reading` (from a text to the result of a reader), `layers` (rules for selected layers), then one
file for each system: `deepspeed`, `maxtext`, `megatron` (with `flags`), `mindspore` (with `patterns`,
`cells`, `mindformers`, `pynative`); `read` chooses among them.
"""

from jaxckpt.policy.readers.deepspeed import policy_from_deepspeed as policy_from_deepspeed
from jaxckpt.policy.readers.maxtext import policy_from_maxtext as policy_from_maxtext
from jaxckpt.policy.readers.megatron import policy_from_megatron as policy_from_megatron
from jaxckpt.policy.readers.mindspore import policy_from_mindspore as policy_from_mindspore
from jaxckpt.policy.readers.read import read_policy as read_policy
from jaxckpt.policy.readers.reading import Reading as Reading
