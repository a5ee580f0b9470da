"""The wire: versioned messages that server, agents and command line share."""
