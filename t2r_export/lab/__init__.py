"""Systems of the surveys that few deploy: mixers, parts and positions with the interfaces of t2r_export.model.

The core does not import this package. Each system has a config without torch in `lab.config`, and one line of text in
the table of its kind: `INSIDES`, `PARTS`, `POSITIONS`, `CROSSES` or `FEATURE_MAPS`. Export, parity and quantization
handle it as any other system; docs/lab.md describes them.
"""
