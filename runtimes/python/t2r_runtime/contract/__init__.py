"""The contract between a graph and a runtime: metadata, options of generation, sampling."""
