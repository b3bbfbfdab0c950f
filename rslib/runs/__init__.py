"""Experiments: parameters, the studies of the paper, grids of runs, scoring of policies."""
