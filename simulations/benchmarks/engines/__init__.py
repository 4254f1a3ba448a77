"""The parts of simulations.benchmarks.engine, each run in a process of its own."""
