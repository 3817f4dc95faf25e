"""The subcommands of `routing-hint-sidecar`, one module each."""
