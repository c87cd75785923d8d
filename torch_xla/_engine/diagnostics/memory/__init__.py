"""Who fills the memory of the devices."""
