"""Real schedulers, real workers, real servers, and what happens when they are killed."""
