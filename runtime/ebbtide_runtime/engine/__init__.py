"""Ebbtide inside vLLM's processes: the only code of ours that imports vLLM and torch."""
