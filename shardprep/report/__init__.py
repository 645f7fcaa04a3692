"""Looking at a data set: numbers and one self-contained page."""
