"""Ratios against non-private training and the peers, measured in one run."""
