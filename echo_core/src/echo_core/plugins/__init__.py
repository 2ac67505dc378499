"""The hooks of plugins, how plugins are found, and how one is loaded."""
