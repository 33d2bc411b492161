"""The golden files of models/tiny: graphs of a few kilobytes and what they must compute, for runtimes in any language.

    python -m t2r_export.golden models/tiny

runtimes/CONTRACT.md, "Conformance", says what is in them and what a runtime does with each. The numbers are the eager
model's in float64, so that every runtime is compared with the same truth and none with another's rounding.
"""
