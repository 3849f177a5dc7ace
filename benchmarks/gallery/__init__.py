"""Memory problems of public issue threads: as written, with the thread's advice, and planned without a mark.

    python -m benchmarks.gallery [NAME ...] [--again]    # goes on where it stopped

Every program is the thread's own at its own sizes. Where a thread gives no gradient, no sizes or a description alone,
the entry says what was added. All versions are compiled for an H200; nothing runs on a device. The planner is asked for
a plan at the total of the advice, or at half of the total as written where the advice does not lower it, and for its
smallest plan. Read in this order: `entry`, `scans`, `networks`, `heads`, `table`, `questions`, `page`.
"""

from benchmarks.gallery.entry import Entry
from benchmarks.gallery.table import ENTRIES

__all__ = ["ENTRIES", "Entry"]
