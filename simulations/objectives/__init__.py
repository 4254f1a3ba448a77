"""The parts of the objective-conditioning studies: settings, fits, tables, claims, figures."""
