"""How threads wait for the store, and what wakes them."""
