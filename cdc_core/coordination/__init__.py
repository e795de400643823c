"""Redis: term numbers, live figures and wake-ups. All of it may be lost at any time."""
