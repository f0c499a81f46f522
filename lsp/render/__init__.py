"""Traces for the eye."""
