"""The runtime: what goes into every engine pod."""
