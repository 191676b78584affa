"""Walks the one lane of a CPU rank: wait for an op's turn, call it, stamp and publish; nothing else.

The compiled helper does all of it but the call, with arguments bound beforehand. Without it the same steps run in
Python.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from heterotask_core.program.model import OpKind
from heterotask_core.runtime.context import SPIN_S, Context
from heterotask_core.runtime.native import native

_NANO = 1e-9


class _Word(enum.IntEnum):
    """Words of ``struct lane`` in ``_native.c``, in its order."""

    N = 0
    POSITION = 1
    EPOCH = 2
    FLAGS = 3
    ABORTED = 4
    OPS = 5
    DEP_PTR = 6
    DEPS = 7
    START = 8
    FINISH = 9
    COUNTERS = 10
    SPIN = 11
    IDLE = 12
    SLEEP = 13
    GIVES = 14
    BELL = 15
    FAR = 16


class Walker:
    """The lane ``lane`` of this rank; ``calls[i]`` computes its ``i``-th op and is complete when it returns."""

    def __init__(self, context: Context, lane: int, calls: Sequence[Callable[[], object]], *, sleep_s: float) -> None:
        """Prepare for every repeat of the context's program; sleep ``sleep_s`` between polls once idle."""
        ops = context.lane_ops(lane)
        # Own ops before it are complete by lane order.
        ptr, deps = context.wait_lists(ops, own=False)
        self._context = context
        self._lane = lane
        self._ops = np.array(ops, np.int32)
        self._dep_ptr, self._deps = ptr, deps
        self._calls = tuple(calls)
        self._sleep_s = sleep_s
        # Where ranks share cores, a lane that never waits would keep the agent from sending what is made.
        self._gives = np.zeros(len(ops), np.uint8) if context.spin_s else context.sent(ops)
        self._far = (context.program.op_kind[deps] == OpKind.TRANSFER).astype(np.uint8)
        self._native = native()
        self._state = np.zeros(len(_Word), np.int64)
        words = {
            _Word.N: len(ops),
            _Word.FLAGS: context.memory.flags.address,
            _Word.ABORTED: context.memory.aborted_address,
            _Word.OPS: self._ops.ctypes.data,
            _Word.DEP_PTR: ptr.ctypes.data,
            _Word.DEPS: deps.ctypes.data,
            _Word.COUNTERS: context.counters.address(lane),
            _Word.SPIN: int(context.spin_s / _NANO),
            _Word.IDLE: int(SPIN_S / _NANO),
            _Word.SLEEP: int(sleep_s / _NANO),
            _Word.GIVES: self._gives.ctypes.data,
            _Word.BELL: 0 if context.spin_s else context.memory.bell_address,
            _Word.FAR: self._far.ctypes.data,
        }
        for word, value in words.items():
            self._state[word] = value

    @property
    def op(self) -> int | None:
        """The op in turn: the one that has failed when :meth:`run` raises."""
        position = int(self._state[_Word.POSITION])
        return int(self._ops[position]) if position < len(self._ops) else None

    def run(self, repeat: int) -> bool:
        """Run every op once, in order; return False where the epoch was aborted. Raises what a call raises."""
        context, state = self._context, self._state
        state[_Word.POSITION] = 0
        state[_Word.EPOCH] = context.epoch
        if self._native is None:
            return self._run(repeat)
        state[_Word.START] = context.start_s[repeat].ctypes.data
        state[_Word.FINISH] = context.finish_s[repeat].ctypes.data
        return bool(self._native.walk(int(state.ctypes.data), self._calls))

    def _run(self, repeat: int) -> bool:
        """Do in Python what ``walk`` does compiled."""
        context, memory, counters, lane = self._context, self._context.memory, self._context.counters, self._lane
        seen, publish, clock_s, epoch = memory.flags.seen, memory.flags.publish, time.monotonic, context.epoch
        start_s, finish_s = context.start_s[repeat], context.finish_s[repeat]
        ptr, deps = self._dep_ptr.tolist(), self._deps.tolist()
        before = counters.done(lane)
        for position, (op, call) in enumerate(zip(self._ops.tolist(), self._calls, strict=True)):
            self._state[_Word.POSITION] = position
            if memory.aborted(epoch):
                return False
            for dependency in deps[ptr[position] : ptr[position + 1]]:
                if not seen(dependency, epoch) and not self._wait(dependency, epoch):
                    return False
            counters.set(lane, issued=before + position + 1, done=before + position)
            start_s[op] = clock_s()
            call()
            finish_s[op] = clock_s()
            publish(op, epoch)
            if self._gives[position]:
                os.sched_yield()
        counters.set(lane, issued=before + len(self._ops), done=before + len(self._ops))
        self._state[_Word.POSITION] = len(self._ops)
        return True

    def _wait(self, dependency: int, epoch: int) -> bool:
        """Wait until ``dependency`` is complete; return False where the epoch was aborted."""
        memory = self._context.memory
        since_s = time.monotonic()
        while not memory.flags.seen(dependency, epoch):
            if memory.aborted(epoch):
                return False
            if time.monotonic() - since_s < SPIN_S:
                os.sched_yield()
            else:
                time.sleep(self._sleep_s)
        return True
