"""The whole report: every table and figure, one after the other.

python -m experiments.forster2018 [--quick] [--runs N] [-o DIR]
"""

from __future__ import annotations

import sys

from experiments.forster2018 import REPORT, figure2, figure3, figure_c1, open_choices, table2
from experiments.verdicts import whole_report

EXPERIMENTS = [table2, figure_c1, figure2, figure3, open_choices]

if __name__ == "__main__":
    sys.exit(whole_report("all tables and figures of Forster & Lücke 2018", REPORT, EXPERIMENTS))
