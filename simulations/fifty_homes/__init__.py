"""Parts of the study simulations/hxai_fifty_homes.py: measures, the incentive scenario, figures, claims."""
