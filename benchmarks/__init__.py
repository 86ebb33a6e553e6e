"""Speed, measured against peers in the same run and printed as ratios. `make bench` runs all of them."""
