"""What is known of the host, and asked of what goes there, before anybody decides what does.

Read before `problem`, which holds it; `copies` goes by it.
"""

from dataclasses import dataclass, replace

from jaxckpt.cost import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloading:
    """How values are offloaded.

    Attributes:
      bandwidth_bytes_per_s: Between device and host, one way, both at once; None for the target's own.
      prefetch: How many layers each copy may take, where no rule says it; None: chosen from bandwidths.
      min_bytes: Smaller values stay on the device, where the planner chooses: a copy takes its time to start.
      last_layers_kept: The values of so many last layers, the head being one, stay on the device, where the planner
        chooses: their backward comes before they would have left.
      most_host_bytes: What values may take in host memory, where the planner chooses; None for no limit.

    Example:
      >>> Offloading(bandwidth_bytes_per_s=50e9).prefetch is None
      True
    """

    bandwidth_bytes_per_s: float | None = None
    prefetch: int | None = None
    min_bytes: int = 2**20
    last_layers_kept: int = 0
    most_host_bytes: int | None = None

    def rates(self, rates: Rates) -> Rates:
        """The rates of a device whose link to the host is this one."""
        if self.bandwidth_bytes_per_s is None:
            return rates
        return replace(rates, host_bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
