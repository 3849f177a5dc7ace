"""Out-of-memory messages of XLA, read into data, with remedies.

Read in this order: `lines` (a log without its decoration), `message_patterns` (which allocator speaks), `figures`,
`buffers`, `out_of_memory` (a message as data), `remedies` (what would lower the peak).
"""

from jaxckpt.oom.out_of_memory import OutOfMemory as OutOfMemory, read_out_of_memory as read_out_of_memory
from jaxckpt.oom.remedies import Remedy as Remedy
