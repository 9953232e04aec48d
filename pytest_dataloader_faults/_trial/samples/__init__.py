"""Which samples are the same: the fingerprint of a value, the comparer, the reference."""
