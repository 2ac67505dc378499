"""The commands of `echoctl`, one module each. `echoctl.command` imports one when it is called."""
