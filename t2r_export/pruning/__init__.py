"""Smaller versions of parts, what they cost, and the choice among them."""
