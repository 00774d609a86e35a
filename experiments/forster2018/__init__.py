"""Forster & Lücke, *Can clustering scale sublinearly with its clusters?* (AISTATS 2018): its figures and Table 2."""

from pathlib import Path

HEADING = "Forster & Lücke 2018, measured again"
REPORT = Path(__file__).with_name("report")
"""Where the reports of the full runs are kept."""
