"""The parts of the DP-aware AdaLN-Zero study: settings, data, cells, claims, figures, page."""
