"""Queue of copies between device and host, which run while kernels run: one at a time each way, and who waits for them.

A model of two copy engines with one bandwidth. Read after `rates`.
"""


class HostLinkQueue:
    """The copies of one schedule, queued on the host link in the order in which they are started.

    Example:
      >>> link = HostLinkQueue(1e9)
      >>> link.store(7, 2_000_000, now_s=0.0)
      >>> link.wait(7, now_s=0.0005)
      0.0015
    """

    def __init__(self, bandwidth_bytes_per_s: float):
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._out_s = 0.0
        self._in_s = 0.0
        self._done_s: dict[int, float] = {}
        self._host_bytes = 0
        self.peak_host_bytes = 0
        """The largest number of bytes on the host at once."""
        self.stall_s = 0.0
        """Seconds of waiting so far."""

    def __contains__(self, instance: int) -> bool:
        return instance in self._done_s

    def store(self, instance: int, size_bytes: int, *, now_s: float) -> None:
        """Starts a copy to the host, that of `instance`."""
        self._out_s = self._done_s[instance] = max(self._out_s, now_s) + size_bytes / self._bandwidth_bytes_per_s
        self.add_host_bytes(size_bytes)

    def load_stored(self, stored: int, instance: int, size_bytes: int, *, now_s: float) -> None:
        """Starts to copy `stored` back as `instance`, once it has arrived on the host."""
        self.load(instance, size_bytes, now_s=max(now_s, self._done_s.get(stored, now_s)))
        self.add_host_bytes(-size_bytes)

    def load(self, instance: int, size_bytes: int, *, now_s: float) -> None:
        """Starts a copy from the host, of a value that arrived there before, as `instance`."""
        self._in_s = self._done_s[instance] = max(self._in_s, now_s) + size_bytes / self._bandwidth_bytes_per_s

    def add_host_bytes(self, size_bytes: int) -> None:
        """Counts bytes more on the host; fewer, where `size_bytes` is negative."""
        self._host_bytes += size_bytes
        self.peak_host_bytes = max(self.peak_host_bytes, self._host_bytes)

    def pass_on(self, instance: int, new: int) -> None:
        """Gives a copy another instance, behind a barrier."""
        self._done_s[new] = self._done_s[instance]

    def wait(self, instance: int, *, now_s: float) -> float:
        """Seconds from now until the copy of an instance is done; waiting is counted."""
        waited_s = max(0.0, self._done_s.get(instance, now_s) - now_s)
        self.stall_s += waited_s
        return waited_s
