"""Verbeek, Vlassis & Nunnink, *A variational EM algorithm for large-scale mixture modeling* (ASCI 2003), again."""

from pathlib import Path

HEADING = "Verbeek, Vlassis & Nunnink 2003, measured again"
REPORT = Path(__file__).with_name("report")
"""Where the reports of the full runs are kept."""
