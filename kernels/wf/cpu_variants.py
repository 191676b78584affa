"""Host variants: make an input file, replay a task, store the digests of the results.

The content of a file is a digest repeated: of its name for an input, of its task and all that the task read for a
result. So the final digests tell whether every task got the right bytes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def digest(text: str, inputs: Iterable[Array]) -> bytes:
    """Return 16 bytes that depend on a name and on the content of files, in order."""
    total = hashlib.blake2b(text.encode(), digest_size=16)
    for content in inputs:
        total.update(hashlib.blake2b(content.data, digest_size=16).digest())
    return total.digest()


def fill(content: Array, value: bytes) -> None:
    """Repeat 16 bytes over a file's content."""
    pattern = np.frombuffer(value, np.uint8)
    whole = len(content) // len(pattern) * len(pattern)
    content[:whole].reshape(-1, len(pattern))[...] = pattern
    content[whole:] = pattern[: len(content) - whole]


def stage(*, content: Array, name: str) -> None:
    """Make an input file."""
    fill(content, digest(name, ()))


def replay(*, outputs: Sequence[Array] = (), inputs: Sequence[Array] = (), name: str, seconds: float) -> None:
    """Read all inputs, write all outputs, and stay busy until ``seconds`` have passed."""
    end = time.perf_counter() + seconds
    value = digest(name, inputs)
    for k, content in enumerate(outputs):
        fill(content, digest(f"{k}", (np.frombuffer(value, np.uint8),)))
    while time.perf_counter() < end:
        pass


def store(*, results: Sequence[Array], path: Path, names: Sequence[str]) -> None:
    """Write the digests of all result files that no task reads, as JSON."""
    found = {name: digest("", (content,)).hex() for name, content in zip(names, results, strict=True)}
    path.write_text(json.dumps(found, indent=1))
