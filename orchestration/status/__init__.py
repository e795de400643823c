"""What `walgate status` reports."""
