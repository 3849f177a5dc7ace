"""The chain of ops of one kernel, as a graph that shares ops."""

from types import SimpleNamespace

from jaxckpt.cost.kernel_chains import Chain, KernelChains
from jaxckpt.schedule import Run


def test_an_op_that_several_others_read_is_visited_once():
    """Each step reads the results of the two before it: 90 steps have more than 10^18 ways to the first."""
    steps = [Run(op=at, reads=(at - 1, at - 2) if at > 1 else (), writes=(at,)) for at in range(90)]
    chains = KernelChains(steps, SimpleNamespace(materialised={0, 1}))
    assert chains.of(89) == Chain(operands={0, 1}, ops=set(range(2, 90)))
