"""The parts of compare.py: contenders, workloads, how they are measured, and the report."""
