"""The whole report: every table and figure, one after the other.

python -m experiments.verbeek2003 [--quick] [--runs N] [-o DIR]
"""

from __future__ import annotations

import sys

from experiments.verbeek2003 import REPORT, figure1, figure2, printed, speed
from experiments.verdicts import whole_report

EXPERIMENTS = [figure1, printed, figure2, speed]

if __name__ == "__main__":
    sys.exit(whole_report("all tables and figures of Verbeek, Vlassis & Nunnink 2003", REPORT, EXPERIMENTS))
