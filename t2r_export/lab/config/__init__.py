"""Configs of the systems in t2r_export.lab. Imports without torch."""
