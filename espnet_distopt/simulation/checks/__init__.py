"""What must hold in every simulated run."""
