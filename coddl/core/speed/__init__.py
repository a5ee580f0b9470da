"""How fast a job trains at each share."""
