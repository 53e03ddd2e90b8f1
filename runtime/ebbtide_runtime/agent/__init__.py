"""The agent of one member: `python -m ebbtide_runtime.agent --member FILE`. Never in the path of a request."""
