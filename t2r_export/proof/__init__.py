"""Is the graph still the model? Comparisons, bounds and reports."""
