"""Recovery from a lost slot, server or lake."""
