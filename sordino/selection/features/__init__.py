"""Feature subsets: symmetrical uncertainties, CFS greedy and genetic, PAFS, and what each costs."""
