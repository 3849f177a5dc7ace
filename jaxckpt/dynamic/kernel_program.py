"""A step as the kernels that it compiles to, for the dynamic engine: what is fused is one call, and takes no bytes.

Read after `jaxckpt.solve.problem` and `jaxckpt.dynamic.program`.
"""

from typing import TYPE_CHECKING

from jaxckpt.solve.problem import Problem

if TYPE_CHECKING:
    from jaxckpt.dynamic import Program


def program_of_kernels(problem: Problem) -> "Program":
    """The step as the kernels that it compiles to, over the values that they write to memory.

    Args:
      problem: The step.

    Returns:
      A call for each op that writes to memory, named by the op's id and priced by its kernel's nanoseconds, beside
      which what DTE adds to costs and times is nothing, as meant. Arguments are not in it: they are always there.
      Results are kept at the end, and have no bytes.
    """
    from jaxckpt.dynamic.kernel_calls import KernelCalls  # numba is behind it: a second

    return KernelCalls(problem, with_arguments=False).program()


def training_of_kernels(problem: Problem, *, steps: int) -> "Program":
    """Several training steps as kernels, parameters and what updates them with all else in one memory.

    Args:
      problem: One step.
      steps: How many; the donated arguments of each are results of the one before.

    Returns:
      Calls as of `program_of_kernels`. Arguments are constants; a result takes over the memory of the donated argument
      whose place it takes, where its kernel is the last to read that.
    """
    from jaxckpt.dynamic.kernel_calls import KernelCalls
    from jaxckpt.dynamic.training import state_of, trained

    kernels = KernelCalls(problem, with_arguments=True)
    one, ids = kernels.program(), kernels.ids
    state = {ids[old]: ids[new] for old, new in state_of(problem.graph).items() if new in ids}
    return trained(one, steps=steps, state=state)
