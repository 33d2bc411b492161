"""Execution providers: the graphs that each takes, ahead-of-time compilation, benchmarks."""
