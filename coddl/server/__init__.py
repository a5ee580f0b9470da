"""The pool in real time: journal, control loop, HTTP, and the line to every agent."""
