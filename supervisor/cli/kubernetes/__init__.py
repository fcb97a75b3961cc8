"""The verb about manifests for Kubernetes (docs/kubernetes.md)."""
