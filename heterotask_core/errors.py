"""The error tree: one base, subclasses by what the user can do about it.

A message says what is wrong, where (task, file, key) and what to do next. Every argument goes to
``super().__init__`` so that errors survive pickling. The CLI prints them without a traceback.
"""


class HeteroTaskError(Exception):
    """Base of every error that HeteroTask raises on purpose."""


class UsageError(HeteroTaskError, ValueError):
    """Options of a command mean nothing together, or one is missing; the command ends with exit code 2."""


class GraphError(HeteroTaskError, ValueError):
    """The task graph is malformed: cycle, duplicate name, unknown role, read before write."""


class KernelError(HeteroTaskError, ValueError):
    """A kernel or variant is declared wrongly, or its implementation cannot be found."""


class ApplicationError(HeteroTaskError, ValueError):
    """An application is unknown, or its parameters or input files are unusable."""


class PlatformError(HeteroTaskError, ValueError):
    """The platform is unusable: no device left, unknown device kind, malformed description."""


class ProfileError(HeteroTaskError, ValueError):
    """A profile lacks a timing, is stale, or comes from another device."""


class InstanceError(HeteroTaskError, ValueError):
    """An instance or plan file is malformed; the message holds the JSON path."""


class InfeasiblePlanError(HeteroTaskError, ValueError):
    """No plan exists: a task without variant for any device, or data larger than any memory."""


class ProgramError(HeteroTaskError, ValueError):
    """A program does not verify, or it was made for another graph or platform."""


class ExecutionError(HeteroTaskError, RuntimeError):
    """An executed program failed; the message names task, variant, rank and node."""


class LaunchError(ExecutionError):
    """The MPI job did not start: no rank has run anything."""


class ArenaTooSmallError(ExecutionError, MemoryError):
    """The planned arena does not fit into the node's shared memory."""


class CalibrationError(HeteroTaskError, RuntimeError):
    """A calibration cannot go on; the incumbent plan is intact."""


class StoreError(HeteroTaskError, OSError):
    """A stored record is missing, damaged or foreign; the message names the file and the remedy."""


class MissingExtraError(HeteroTaskError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""
