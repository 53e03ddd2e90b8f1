"""Stands in for the operator of `ebbtide up`: put its parent folder on PYTHONPATH."""
