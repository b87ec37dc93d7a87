"""Benchmarks: one question a script, every row and every peer reported, the lost ones too."""
