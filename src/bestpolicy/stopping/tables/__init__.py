"""Theorem U for tables: what is known (`model`), what a lag fixes (`lag`), what a look says (`look`)."""
