"""Put and get of samples of varying length beside TransferQueue: see __main__.py."""
