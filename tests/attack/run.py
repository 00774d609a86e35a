"""The attack suite for as long as you like: python tests/attack/run.py --minutes 60 [--seed 7]

Rounds of all attacks, each with the next seed, until the time is up or something is found. What is found is shrunk by
hypothesis and printed with its `Case`; the seed that is printed before a round repeats it. `NUMBA_BOUNDSCHECK=1` (with
an empty NUMBA_CACHE_DIR) lets compiled code complain of indices, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Attack, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--examples", type=int, default=100, help="cases of each attack in a round")
    options = parser.parse_args()
    variables = os.environ | {"GLOBULAR_ATTACK_EXAMPLES": str(options.examples)}
    variables.pop("CI", None)  # there the examples are always the same
    end, seed = time.monotonic() + 60.0 * options.minutes, options.seed
    while (left := end - time.monotonic()) > 0.0:
        print(f"seed {seed}, {left / 60.0:.0f} minutes left", flush=True)
        command = [sys.executable, "-m", "pytest", str(HERE), "-q", "-x", f"--hypothesis-seed={seed}"]
        try:
            status = subprocess.run(command, env=variables, cwd=HERE.parents[1], timeout=left, check=False).returncode
        except subprocess.TimeoutExpired:
            break
        if status:
            sys.exit(f"found with --seed {seed} --examples {options.examples}")
        seed += 1
    print(f"nothing found; {seed - options.seed} whole rounds from seed {options.seed} on")


if __name__ == "__main__":
    main()
