"""The attack suite for as long as you like: python tests/attack/run.py --minutes 60 [--seed 7]

Rounds of all attacks, each with the next seed, until the time is up or something is found; in the end it says how many
cases it tried. What is found is shrunk by hypothesis and printed with its `Case`; the seed that is printed before a
round repeats it. `NUMBA_BOUNDSCHECK=1` lets compiled code complain of indices, too.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Attack, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--examples", type=int, default=100, help="cases of each attack in a round")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        count = Path(folder) / "count"
        count.touch()
        found = rounds(options, count)
        n_cases = count.stat().st_size
    print(f"{n_cases} cases from seed {options.seed} on: {found or 'nothing found'}", flush=True)
    sys.exit(1 if found else 0)


def rounds(options: argparse.Namespace, count: Path) -> str:
    """What was found, in words; nothing if that is nothing."""
    end, seed = time.time() + 60.0 * options.minutes, options.seed
    variables = os.environ | {
        "GLOBULAR_ATTACK_EXAMPLES": str(options.examples),
        "GLOBULAR_ATTACK_UNTIL": str(end),
        "GLOBULAR_ATTACK_COUNT": str(count),
    }
    variables.pop("CI", None)  # there the examples are always the same
    while (left := end - time.time()) > 0.0:
        print(f"seed {seed}, {left / 60.0:.0f} minutes left", flush=True)
        # The thresholds know no chance: `make test` tries all there is.
        command = [sys.executable, "-m", "pytest", str(HERE), "-q", "-x", "--ignore", str(HERE / "test_thresholds.py")]
        command.append(f"--hypothesis-seed={seed}")
        if subprocess.run(command, env=variables, cwd=HERE.parents[1], check=False).returncode:
            return f"found with --seed {seed} --examples {options.examples}"
        seed += 1
    return ""


if __name__ == "__main__":
    main()
