"""TFJob manifests of Kubeflow (`kubeflow.org/v1`): what becomes of each field."""
