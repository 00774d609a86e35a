"""Hard passes: every row to the closest of its candidate centres; one file for each source of candidates."""

from globular.passes.cpu.assign import all, batch, down, neighbors, probe, sparse

__all__ = ["all", "batch", "down", "neighbors", "probe", "sparse"]
