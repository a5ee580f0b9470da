"""Pure scheduling: no clock, no I/O, no logging, no global randomness. The simulator and the live pool drive this code."""
