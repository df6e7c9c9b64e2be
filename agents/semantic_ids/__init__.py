"""Semantic IDs are made here."""
