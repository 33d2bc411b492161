"""Compare t2r's graphs with other decoders of the same size: engines, measurements, tables, plots.

benchmarks/plan.toml lists the measurements. Graphs that fail parity are not measured. Results include the machine and
package versions.

This package imports nothing: measured processes load only `worker`, `runners` and their engine.
"""
