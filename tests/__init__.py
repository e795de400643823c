"""Tests of Walgate; the plugins that lend servers are the `fix_*.py` files."""
