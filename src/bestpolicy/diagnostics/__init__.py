"""Is the simulator linear in its features? Tests from samples."""

from bestpolicy.diagnostics.linearity import LinearityReport, Misfit, check_linearity, sample_for_diagnostics

__all__ = ["LinearityReport", "Misfit", "check_linearity", "sample_for_diagnostics"]
