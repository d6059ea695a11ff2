"""Models: shapes, weights and files of the decoders that Limosa trains and serves.

Floor 1: stands on `base`; `inference/` and `training/` stand on it.
"""
