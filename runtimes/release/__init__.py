"""Builds what is published: every package of the project, checksums, and a bill of materials."""
