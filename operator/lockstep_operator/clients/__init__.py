"""What the operator speaks to: the API server (`kube`), and launchers about their drain (`launcher`). Both block."""
