"""Soft passes: E-steps of mixtures; one file for each source of candidates."""

from globular.backends.cpu.expect import all, chunks, linear, low_rank, neighbors, probe, remembered, rows_of, within

__all__ = ["all", "chunks", "linear", "low_rank", "neighbors", "probe", "remembered", "rows_of", "within"]
