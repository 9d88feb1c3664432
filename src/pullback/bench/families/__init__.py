"""What each family is measured on: workloads, peers and the figures to reach."""
