"""The gateway: what clients, trainers and the command line talk to."""
