"""Theorems I and UD, for features that mix states."""
