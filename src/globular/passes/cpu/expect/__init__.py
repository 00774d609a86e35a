"""Soft passes: E-steps of mixtures; one file for each source of candidates."""

from globular.passes.cpu.expect import all, linear, low_rank, neighbors, probe, remembered, rows_of, shares, sparse

__all__ = ["all", "linear", "low_rank", "neighbors", "probe", "remembered", "rows_of", "shares", "sparse"]
