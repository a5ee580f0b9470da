"""Trainings on nodes with links of any speed, on one machine: what estimates are compared with."""
