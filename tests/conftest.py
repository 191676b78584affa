"""What tests of several folders share: the command in this process, and small disks."""

import os
import signal
import subprocess
import sys

import pytest

from heterotask_core import cli

OWN_COMMANDS = [c for c in cli.app.registered_commands if c.callback.__module__ == cli.__name__]
"""Those that are there before ``main`` adds the others, which it does at every call."""


@pytest.fixture
def heterotask(monkeypatch, capsys):
    """Run the command in this process; returns (exit code, stdout, stderr)."""
    # Options set them, for everything that starts ranks: to be undone.
    monkeypatch.setenv("HETEROTASK_HOSTS", "")
    monkeypatch.setenv("HETEROTASK_LAUNCHER", "")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["heterotask", *map(str, argv)])
        monkeypatch.setattr(cli.app, "registered_commands", list(OWN_COMMANDS))
        monkeypatch.setattr(cli.app, "registered_groups", [])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def small_disk(tmp_path):
    """Return a function that mounts a disk of a size such as ``16m``, and returns its folder."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    disk = tmp_path / "disk"

    def mount(size):
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
        return disk

    yield mount
    subprocess.run(["umount", str(disk)], check=True)
