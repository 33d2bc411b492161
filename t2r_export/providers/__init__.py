"""Execution providers: parity matrix, ahead-of-time compilation, benchmarks, other Python interpreters."""
