"""What runs in a DataLoader worker."""
