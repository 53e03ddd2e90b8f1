"""Drivers: they touch the world as plans ask, and report what they see of it."""
