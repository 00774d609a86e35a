"""Infinite mixtures: the variational run over rows or cells, with its splits and merges."""
