"""Kurihara, Welling & Vlassis, *Accelerated variational infinite mixture models* (NIPS 2006), again."""

from pathlib import Path

HEADING = "Kurihara, Welling & Vlassis 2006, measured again"
REPORT = Path(__file__).with_name("report")
"""Where the reports of the full runs are kept."""
