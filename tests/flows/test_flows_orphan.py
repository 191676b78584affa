"""A flow process ends with its worker, and hears what it is told while it is in a callback from C."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

WORKER = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
sys.stdin.read()
"""
FLOW = """
import ctypes, signal, time
from prefect.exceptions import TerminationSignal
from flows.orphan import end_with_worker

def told(number, frame):
    raise TerminationSignal(number)

signal.signal(signal.SIGTERM, told)
end_with_worker()
try:
    CALLED
    print("waits", flush=True)
    while True:
        time.sleep(60)
except TerminationSignal:
    print("ended", flush=True)
"""


@pytest.mark.parametrize("lost", [False, True], ids=["worker killed", "told in a callback"])
def test_a_flow_process_ends(lost):
    called = "ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))()" if lost else "pass"
    with subprocess.Popen(
        # The words are those of a worker's command line.
        [sys.executable, "-c", WORKER, FLOW.replace("CALLED", called), "prefect", "worker", "start"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        flow = int(worker.stdout.readline())
        try:
            assert worker.stdout.readline() == "waits\n"
            if not lost:
                worker.kill()
            assert worker.stdout.readline() == "ended\n"
        finally:
            worker.kill()
            with suppress(ProcessLookupError):
                os.kill(flow, signal.SIGKILL)
        assert worker.stderr.read() == ""
