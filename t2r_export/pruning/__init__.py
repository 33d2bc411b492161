"""Pruning: smaller versions of parts, their costs, and the choice among them."""
