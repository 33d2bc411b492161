"""The parts of a layer, listed in t2r_export.config.parts.PARTS; `base` has their interface."""
