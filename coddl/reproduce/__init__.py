"""The experiments of the papers that this project implements, one module a system."""
