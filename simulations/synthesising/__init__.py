"""Parts of the synthesis study (simulations/synthesis_study.py)."""
