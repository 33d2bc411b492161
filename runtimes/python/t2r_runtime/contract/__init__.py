"""The contract between graph and runtime: metadata, generation options, sampling."""
