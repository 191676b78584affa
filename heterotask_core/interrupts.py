"""Keeps Ctrl-C and SIGTERM from being lost, and ends a process at once.

What a signal handler raises is raised wherever the main thread is. In a callback from C (Numba compiles with many) or
a finalizer it cannot propagate: Python prints it, and the program goes on as if nobody had asked it to end.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

AGAIN_S = 0.05
"""Long enough for most callbacks to be over; in a longer one the signal is lost again, and sent again."""


def resend_lost(signals: Mapping[type[BaseException], int]) -> Callable[[], int]:
    """Send a signal again when what its handler raised was lost; nothing is printed of it.

    ``signals`` maps what handlers raise to the signal. Call it in the main thread; it holds until the process ends.
    Returns a function that tells the signal that was lost, or 0: who called the callback may fail for want of its
    result before the signal comes again.
    """
    before = sys.unraisablehook
    main = threading.main_thread()
    on_its_way = False
    last = 0

    def send(number: int) -> None:
        nonlocal on_its_way
        on_its_way = False
        # To the thread, so that what it waits for is interrupted.
        signal.pthread_kill(main.ident or 0, number)

    def hook(lost: sys.UnraisableHookArgs) -> None:
        nonlocal on_its_way, last
        number = next((number for kind, number in signals.items() if isinstance(lost.exc_value, kind)), None)
        if number is None or threading.current_thread() is not main:
            before(lost)
        elif not on_its_way:
            # One is enough; more would meet a program that ends already.
            on_its_way, last = True, number
            timer = threading.Timer(AGAIN_S, send, (number,))
            timer.daemon = True
            timer.start()

    sys.unraisablehook = hook
    return lambda: last


def leave(code: int) -> NoReturn:
    """End this process without taking down the interpreter, which takes long with a compiler loaded.

    What is registered with ``atexit`` is done, and what was printed is written.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
