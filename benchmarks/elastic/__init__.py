"""Training scripts that the benchmarks of the elastic runtime start, and how they start them."""
