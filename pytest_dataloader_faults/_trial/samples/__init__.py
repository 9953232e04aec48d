"""Which samples are the same: the fingerprint of a value, a pass, the reference."""
