"""The metadata is in setup.cfg; pip does not look there without this file."""

from setuptools import setup

setup()
