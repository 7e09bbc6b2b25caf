"""The background loops of a scheduler, one module each."""
