"""Manifests of TFJobs, and what the reader of job files makes of them."""

from __future__ import annotations

from pathlib import Path

from supervisor.adapters.files.jobfile import JobFile, load_job_file

BASE = "file:///state/checkpoints"
HEAD = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: a}\n"
RUN = "{name: tensorflow, command: [python, t.py]MORE}"
WORKER = f"Worker: {{template: {{spec: {{containers: [{RUN}]}}}}}}"
FULL = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: full
  annotations:
    tfsup/strategy: coordinator
    tfsup/checkpoint.uri: file:///shared/full
    tfsup/checkpoint.keep: "7"
    tfsup/env.MODEL_DIR: "{checkpoint_dir}"
    tfsup/env.NUMBER: "010"
    tfsup/preload: '["tensorflow", "numpy"]'
    tfsup/volumes.claim: /data/claim
    tfsup/priority: "1000"
    example.org/owner: nobody
spec:
  successPolicy: AllWorkers
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 4
    activeDeadlineSeconds: 3600
    ttlSecondsAfterFinished: 60
    schedulingPolicy: {minAvailable: 4, priorityClass: high}
  tfReplicaSpecs:
    Chief: &one
      restartPolicy: OnFailure
      template:
        spec:
          terminationGracePeriodSeconds: 40
          priorityClassName: high
          nodeSelector: {gpu: h100}
          tolerations: [{key: gpu, operator: Exists}]
          containers:
          - name: tensorflow
            image: registry:5000/team/train:2.21
            command: [python, train.py]
            args: ["--rate=$(RATE)", "--json={\\"a\\": {b}}", "$$(RATE)", "$(NONE)"]
            workingDir: /app
            env:
            - {name: RATE, value: "0.1"}
            - {name: TEXT, value: "{task_index} $(RATE)"}
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}
            ports: [{name: tfjob-port, containerPort: 2222}]
            resources:
              requests: {cpu: 500m, memory: 1Gi}
              limits: {memory: 2Gi, nvidia.com/gpu: 1}
            volumeMounts:
            - {name: data, mountPath: /data, readOnly: true}
            - {name: claim, mountPath: /train/, subPath: runs}
            - {name: shm, mountPath: /dev/shm}
            securityContext: {}
          volumes:
          - {name: data, hostPath: {path: /srv/data}}
          - {name: claim, persistentVolumeClaim: {claimName: x}}
          - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1536Mi}}
    ps: *one
    WORKER: *one
    Evaluator: *one
status: {conditions: [{type: Running}]}
"""


def load(directory: Path, text: str, name: str | None = None) -> JobFile:
    path = directory / "tfjob.yaml"
    path.write_text(text)
    return load_job_file(path, checkpoint_base=BASE, name=name)


def manifest(replicas: str = WORKER, more: str = "", spec: str = "") -> str:
    return f"{HEAD}spec:\n{spec}  tfReplicaSpecs:\n    {replicas.replace('MORE', more)}\n"


def pod(more: str) -> str:
    """A manifest whose pod has another field."""
    return manifest(f"Worker: {{template: {{spec: {{containers: [{RUN}], {more}}}}}}}")


def replica(more: str) -> str:
    """A manifest whose replica type has another field."""
    return manifest(WORKER.replace("Worker: {", f"Worker: {{{more}, "))
