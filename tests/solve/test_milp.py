"""What native code prints is kept from standard output, and Python's own is not lost before or after."""

import os
import subprocess
import sys
from threading import Event, Thread

from jaxckpt.solve.milp import silenced_stdout

PROGRAM = """
import os
from jaxckpt.solve.milp import silenced_stdout
print("before")
with silenced_stdout():
    os.write(1, b"from a library\\n")
print("after")
"""


def test_a_librarys_lines_do_not_reach_standard_output():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["before", "after"]


def test_no_descriptor_is_left_open():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with silenced_stdout():
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_threads_that_silence_it_leave_standard_output_as_it_was():
    before = os.fstat(1)
    first, second = Event(), Event()

    def outer():
        with silenced_stdout():
            first.set()
            second.wait(0.2)

    def inner():
        first.wait()
        with silenced_stdout():
            second.set()

    threads = [Thread(target=outer), Thread(target=inner)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.path.samestat(os.fstat(1), before)


def test_a_process_without_standard_output_solves_too():
    program = """
import os, sys
from jaxckpt.solve.milp import silenced_stdout
os.close(1)
sys.stdout = None
with silenced_stdout():
    print("nowhere")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
