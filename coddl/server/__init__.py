"""The server of a pool: journal, control loop, HTTP, and a session for each agent."""
