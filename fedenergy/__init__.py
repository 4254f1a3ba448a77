"""fedenergy: federated simulation of private household energy."""
