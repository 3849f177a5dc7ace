"""The cheapest run of neighbouring blocks that is large enough, in one pass over the addresses.

Evicting one value here and one there frees bytes that do not lie together. Coop's observation is that for a request of
M bytes only runs of neighbours matter, and that the cheapest of them is found by moving two ends over the pool: the
right one until the run is large enough, the left one while it stays so.

That is the least cost for this one request. Where a run is larger than the request, what it frees besides serves the
next ones; weighed by the byte, a large run can be cheaper than a small one.

Source: Zhang et al., Coop, NeurIPS 2023, section 3.3. Complexity: O(n); each block enters and leaves once.
"""

from math import inf
from typing import Any

from jaxckpt.dynamic.compiled import compiled


@compiled
def cheapest_window(sizes: Any, costs: Any, count: int, need: int, by_byte: bool) -> tuple[int, int]:
    """The run of blocks, in order of address, of at least `need` bytes whose costs have the least sum.

    Costs are 0 where a block is free, less than 0 where it must stay, infinite where it should go last. With `by_byte`
    the sum of a run's costs is divided by its bytes.

    Returns:
      The first block and the one behind the last; (0, 0) where no run is large enough. Of equally cheap runs the one
      that is found first, at the lowest address. Runs with fewer infinite costs come before all others.
    """
    best_first, best_end, best_last_resorts, best_cost = 0, 0, count + 1, inf
    first, size, cost, last_resorts = 0, 0, 0.0, 0
    for end in range(count):
        if costs[end] < 0:
            first, size, cost, last_resorts = end + 1, 0, 0.0, 0
            continue
        size += sizes[end]
        if costs[end] == inf:
            last_resorts += 1
        else:
            cost += costs[end]
        while size >= need:
            weighed = cost / size if by_byte else cost
            if last_resorts < best_last_resorts or (last_resorts == best_last_resorts and weighed < best_cost):
                best_first, best_end, best_last_resorts, best_cost = first, end + 1, last_resorts, weighed
            size -= sizes[first]
            if costs[first] == inf:
                last_resorts -= 1
            else:
                cost -= costs[first]
            first += 1
            if first > end:
                cost = 0.0  # what rounding left
    return best_first, best_end
