"""Finite mixtures: EM, exact and truncated, over rows and over cells."""
