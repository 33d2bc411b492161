"""Execution providers: the parity matrix, ahead-of-time compilation, other interpreters."""
