"""Bounds: what the paper predicts, and what no algorithm can beat."""
