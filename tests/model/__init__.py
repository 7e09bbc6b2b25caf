"""A model of the run protocol, explored state by state."""
