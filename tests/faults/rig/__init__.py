"""What the fault tests are made with."""
