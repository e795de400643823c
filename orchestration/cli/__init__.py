"""The `walgate` command."""
