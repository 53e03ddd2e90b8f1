"""The client for trainers, and the command line."""
