"""The version of the package. Imports nothing, so that every module may import it."""

__version__ = "0.1.0"
