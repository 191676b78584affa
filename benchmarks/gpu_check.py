"""Check CUDA on this machine: backend contract, every application checked on the GPU, Canny timed, profile printed.

python benchmarks/gpu_check.py      needs a CUDA GPU, the extras cuda, apps and dev; under five minutes.
"""

import subprocess
import sys
import tempfile

from arguments import Parser, run_program

HETEROTASK = [sys.executable, "-m", "heterotask_core.cli"]
CANNY = ["canny", "-p", "size=4096", "-p", "tile=1024"]
OTHERS = {
    "cholesky": ["-p", "size=2048"],
    "heat": ["-p", "size=1024", "-p", "steps=20"],
    "kmeans": ["-p", "picture=china", "-p", "block=65536"],
    "fft2d": ["-p", "size=1024"],
}


def step(*command: str) -> bool:
    """Print and run a command; return whether it succeeded."""
    print("$", *command[1:], flush=True)
    return subprocess.run(command, timeout=240).returncode == 0


def main() -> int:
    """Run every step, also after a failure; return the number of failures."""
    Parser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as store:
        kept = ["--store", f"{store}/store"]
        steps = [
            [*HETEROTASK, "doctor"],
            [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"],
            [*HETEROTASK, "profile", *CANNY, "--devices", "cpu:2,cuda:1", *kept],
            [*HETEROTASK, "run", *CANNY, "--devices", "cuda:1", "--repeats", "5", "--check", *kept],
            [*HETEROTASK, "run", *CANNY, "--devices", "cpu:2,cuda:1", "--repeats", "5", "--check", *kept],
            *(
                [*HETEROTASK, "run", name, *params, "--devices", "cuda:1", "--check", "--profile-budget", "5", *kept]
                for name, params in OTHERS.items()
            ),
        ]
        failures = sum(not step(*command) for command in steps)
    print(f"{len(steps) - failures} passed, {failures} failed")
    return failures


if __name__ == "__main__":
    run_program(main)
