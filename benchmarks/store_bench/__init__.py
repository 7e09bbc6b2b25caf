"""The parts of `benchmarks/stores.py`: what is measured, what it is measured against, and how it is told."""
