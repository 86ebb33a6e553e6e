"""Algorithms from the literature, one file each, and what several of them share."""
