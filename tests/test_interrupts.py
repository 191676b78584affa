"""Signals whose exception is lost are sent again; what else is lost is shown as before."""

import subprocess
import sys

PROBE = """
import signal, threading, time
from heterotask_core.interrupts import resend_lost

resend_lost({KeyboardInterrupt: signal.SIGINT})
signal.signal(signal.SIGINT, signal.default_int_handler)

class Lost:
    def __init__(self, error):
        self.error = error
    def __del__(self):
        raise self.error

Lost(ValueError("of something else"))
other = threading.Thread(target=Lost, args=[KeyboardInterrupt("in another thread")])
other.start()
other.join()
Lost(KeyboardInterrupt("of Ctrl-C"))
try:
    while True:
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_only_what_the_main_thread_lost_of_a_signal_is_sent_again_and_silent():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")
    assert "of something else" in done.stderr
    assert "in another thread" in done.stderr
    assert "of Ctrl-C" not in done.stderr
