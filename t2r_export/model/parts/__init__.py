"""The parts of a layer: one per file, behind the interface in `base`; t2r_export.config.parts.PARTS names them all."""
