"""Ctrl-C: a sentence at once, and the end soon after it, whatever runs at the moment.

Python raises `KeyboardInterrupt` in the main thread only between two of its own instructions, and a compile of XLA is
one call that may take a minute. `signal.set_wakeup_fd` makes the signal itself write to a pipe; a thread reads it. The
thread leaves the main thread some time to end by itself, with files closed and halves of files removed, and then ends
the process.
"""

import os
import signal
import sys
import threading
import time

EXIT_INTERRUPTED = 130
_PATIENCE_S = 0.5
_SHOW_CURSOR = "\x1b[?25h"
_SAID = threading.Lock()


def end_on_interrupt() -> None:
    """Makes Ctrl-C end this process with 130; where interrupts are ignored, as in the background, they still are."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reader,), daemon=True).start()


def _wait(reader: int) -> None:
    while os.read(reader, 1) != bytes([signal.SIGINT]):  # other signals are of the user's code
        pass
    say_interrupted()
    time.sleep(_PATIENCE_S)
    os._exit(EXIT_INTERRUPTED)


def say_interrupted() -> None:
    """Says it once, whichever of the two threads comes first."""
    if _SAID.acquire(blocking=False):
        cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""  # the spinner had hidden it
        sys.stderr.write(f"{cursor}\nInterrupted: nothing more is done.\n")
        sys.stderr.flush()
