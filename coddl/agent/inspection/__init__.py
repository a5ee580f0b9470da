"""`coddl inspect`: has workers on this node, and on others, measure what the hardware does."""
