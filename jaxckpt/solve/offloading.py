"""Bandwidth and limits of offloading to the host.

Read before `problem`, which holds them; `optimal.prefetch_schedule` uses them.
"""

from dataclasses import dataclass, replace

from jaxckpt.cost import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloading:
    """Options of offloading.

    Attributes:
      bandwidth_bytes_per_s: Between device and host, one way, both at once; None for the target's own.
      prefetch: Prefetch distance in layers, for values whose rule has none; None to choose it from bandwidths.
      min_bytes: The planner does not offload smaller values: the start of a copy costs more than their bytes.
      last_layers_kept: The planner does not offload values of so many last layers, the head being one: their backward
        begins before their store would end.
      most_host_bytes: Host memory that the planner may use; None for no limit.

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
        """Rates of a device with the bandwidth of these options."""
        if self.bandwidth_bytes_per_s is None:
            return rates
        return replace(rates, host_bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
