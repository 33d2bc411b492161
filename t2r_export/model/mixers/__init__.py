"""The token mixers: one per file, behind the interfaces in `base`; t2r_export.config.mixers.MIXERS names them all."""
