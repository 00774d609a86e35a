"""The whole report: every table and figure, one after the other.

python -m experiments.kurihara2006 [--quick] [--runs N] [-o DIR]
"""

from __future__ import annotations

import sys

from experiments.kurihara2006 import REPORT, figure1, figure2, figure3, peers, text
from experiments.verdicts import whole_report

EXPERIMENTS = [figure1, figure2, figure3, text, peers]

if __name__ == "__main__":
    sys.exit(whole_report("all tables and figures of Kurihara, Welling & Vlassis 2006", REPORT, EXPERIMENTS))
