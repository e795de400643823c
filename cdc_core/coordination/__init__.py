"""Redis: terms and live figures. Everything here may be lost at any time."""
