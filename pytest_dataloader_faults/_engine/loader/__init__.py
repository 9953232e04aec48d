"""What runs in the process that iterates the DataLoader."""
