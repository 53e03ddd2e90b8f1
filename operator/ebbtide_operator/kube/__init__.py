"""The cluster: the same plan() as in local mode, with pods instead of processes and Leases instead of files."""
