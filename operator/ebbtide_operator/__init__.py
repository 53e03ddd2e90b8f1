"""The operator: a pure planner, drivers that touch the world, and the gateway."""
