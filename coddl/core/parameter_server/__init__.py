"""Jobs that train with parameter servers: their costs, policies and placement (Optimus)."""
