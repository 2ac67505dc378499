"""The hooks that plugins implement, how Echo finds plugins, and how it loads one."""
