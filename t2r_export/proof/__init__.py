"""Parity of graph and model: comparisons, tolerances, reports."""
