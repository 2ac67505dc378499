"""How threads wait for the store, and how they are woken."""
