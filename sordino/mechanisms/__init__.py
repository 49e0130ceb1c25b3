"""The only place where noise meets data: each mechanism charges the ledger and states its guarantee."""
