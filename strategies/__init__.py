"""Aggregation strategies of the zone: one file each, real Flower strategies over a pure function."""
