"""Signals whose exception is lost are sent again; what else is lost is shown as before."""

import signal
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


WAITING = """
import subprocess
import heterotask_core.tables

with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    try:
        print("waits", flush=True)
        child.wait()
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_does_not_wait_for_a_child_process():
    with subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[0] == "interrupted\n"
        finally:
            process.kill()
