"""Steps as users write and call them become pure functions of arrays, and results go back the same way.

Flax NNX objects that a step changes in place, Equinox modules with functions among their leaves, bound methods,
`functools.partial`, keyword arguments and static ones: nothing behind this package knows of them. Flax and Equinox are
used only where the user's process has imported them.

Read in this order: `wrappers` (the function under a user's decorators), `objects` (NNX objects), `split` (arrays and
the rest), `scopes` (paths of NNX modules), `calling`.
"""

from jaxckpt.calling.calling import Calling as Calling, StepCall as StepCall
from jaxckpt.calling.split import is_array as is_array
