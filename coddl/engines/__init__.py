"""How agents get onto machines."""
