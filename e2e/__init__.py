"""End-to-end tests on a real cluster: `scripts/e2e`, or `pytest e2e` with KUBECONFIG and the images already there."""
