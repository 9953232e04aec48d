"""What runs in a DataLoader worker, under both engines."""
