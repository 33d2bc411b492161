"""Measure what a model costs: the machine, our graphs, and others' decoders of the same size.

A speed is a ratio of medians, from rounds that alternate between the candidates in one run, since the same graph was
seen to drift by tens of per cent over minutes. A graph that fails parity gets no speed. Every result carries the
machine and the versions that it was measured on.

Nothing is imported here: `worker` and `runners` are what a measured process holds beside the decoder itself.
"""
