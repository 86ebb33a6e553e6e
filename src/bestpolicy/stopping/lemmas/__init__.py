"""What the theorems stand on, one file a lemma: deviations of noise, of variances, and what they do to values."""
