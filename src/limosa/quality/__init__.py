"""Proof that environments are fit to train on."""
