"""Which devices a share consists of."""
