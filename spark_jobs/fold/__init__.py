"""Turns the changes of one table into the state that they leave."""
