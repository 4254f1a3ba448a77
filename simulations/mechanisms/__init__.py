"""Parts of simulations/hxai_mechanisms.py: settings, runs, figures, claims."""
