"""What calibration gains, part by part, on truths that are drawn and not chosen.

    python benchmarks/calibration.py --draws 20 --seed 0                     # virtual: 2 nodes × 8 GPUs, minutes
    python benchmarks/calibration.py --prior my_prior.yaml --draws 5
    python benchmarks/calibration.py --backend emulated                     # under MPI, in logical time
    python benchmarks/calibration.py --backend machine --devices cpu:1,opencl:1

Canny with a made cost table; ``calibration/priors/default.yaml`` says from which ranges the machine and what is hidden
are drawn. Every arm has the same number of measurements, the same planner and the same budget: *uncalibrated*, *list
plans* (the best measured of that many list schedules), *random overheads*, *regression*, *BO only*, *regression + BO*
(the calibration, its choice before acceptance), *accepted* (its outcome) and the *oracle*, planned with the truth.
Their final programs are measured again with fresh noise. ``--out FILE`` keeps a JSON line a draw, family and devices.
"""

import sys
from pathlib import Path

# ``calibration`` below is the package, not this file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import run_program
from calibration_ablation import main

if __name__ == "__main__":
    run_program(main)
