"""Our graphs beside others' decoders of the same size: engines, turns, tables and plots.

What is measured stands in benchmarks/plan.toml. A graph of ours that fails parity gets no speed. Every result carries
the machine and the versions that it was measured on.

Nothing is imported here: `worker` and `runners` are what a measured process holds beside the decoder itself.
"""
