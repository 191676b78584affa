"""Files that are no regular ones."""

import os
import socket
from pathlib import Path


def make_socket(path: Path) -> None:
    """Leave a socket at ``path``."""
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path may have 107 bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)
