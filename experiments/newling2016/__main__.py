"""The whole report: every table and figure, one after the other.

python -m experiments.newling2016 [--quick] [--runs N] [-o DIR]
"""

from __future__ import annotations

import sys

from experiments.newling2016 import REPORT, figure2, figure3, figure6, table1
from experiments.verdicts import whole_report

EXPERIMENTS = [table1, figure2, figure3, figure6]

if __name__ == "__main__":
    sys.exit(whole_report("all tables and figures of Newling & Fleuret 2016", REPORT, EXPERIMENTS))
