"""feed: another library's loader, whose batches arrive on a device."""
