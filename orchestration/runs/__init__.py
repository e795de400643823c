"""What all runs share: keys, rules of relaunching, signs of life, the Spark session."""
