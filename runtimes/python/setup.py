"""All metadata is in setup.cfg; pip wants this file beside it."""

from setuptools import setup

setup()
