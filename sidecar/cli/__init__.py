"""The subcommands that look into a running sidecar, one module each."""
