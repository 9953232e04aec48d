"""How many epochs it takes to tell what grows with each. Pure."""

FEWEST_EPOCHS = 8
"""Below so many, nothing is said."""
