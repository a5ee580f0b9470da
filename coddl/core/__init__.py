"""Pure scheduling: no clock, no I/O, no logging, no global randomness; drivers bring those."""
