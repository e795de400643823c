"""Capture as a job, with its sensors, its reports and its checks."""
