"""Schedulers judged on problems with known answers: comparisons, grids, tables, plots."""
