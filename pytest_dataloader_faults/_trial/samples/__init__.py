"""What counts as the same sample: fingerprints, comparisons, the reference."""
