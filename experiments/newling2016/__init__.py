"""Newling & Fleuret, *Nested mini-batch k-means* (NIPS 2016): Figs. 2, 3 and 6, and Table 1."""

from pathlib import Path

HEADING = "Newling & Fleuret 2016, measured again"
REPORT = Path(__file__).with_name("report")
"""Where the reports of the full runs are kept."""
