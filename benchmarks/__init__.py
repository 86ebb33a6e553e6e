"""Speed, measured against peers in the same run; `make bench` runs all and fails if a limit is missed."""
