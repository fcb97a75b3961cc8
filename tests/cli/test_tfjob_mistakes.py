"""Each mistake in a TFJob has a message, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract.errors import UserError
from tests.cli.tfjobs import HEAD, WORKER, load, manifest, pod, replica

AT = "spec.tfReplicaSpecs.Worker"
MAIN = f"{AT}.template.spec.containers[0]"
MOUNT = ", volumeMounts: [{name: v, mountPath: /data}]"
GROWING = [f"{{name: A, value: {'$(A)' * 20}}}"] * 9
BAD = {
    "another version": (
        manifest().replace("/v1", "/v1beta2"),
        ["1: apiVersion: 'kubeflow.org/v1beta2' is not supported; what can be submitted is api"],
    ),
    "another kind": (manifest().replace("TFJob", "PyTorchJob"), ["2: kind: 'PyTorchJob' is not supported"]),
    "no version": (manifest().replace("apiVersion: kubeflow.org/v1\n", ""), ["1: apiVersion: missing; what"]),
    "no name": (
        manifest().replace("{name: a}", "{}"),
        ["3: metadata.name: missing; add the name of the job"],
    ),
    "a name made by the server": (
        manifest().replace("{name: a}", "{generateName: a-}"),
        ["3: metadata.generateName: a job is found again by its name, which stays the same; write"],
    ),
    "a bad name": (
        manifest().replace("{name: a}", "{name: a b}"),
        ["3: metadata.name: the name 'a b' is not"],
    ),
    "a queue": (
        manifest(spec="  runPolicy: {schedulingPolicy: {queue: default}}\n"),
        ["5: spec.runPolicy.schedulingPolicy.queue: is refused: there are no queues: nodeSelector keeps"],
    ),
    "the name of a priority": (
        manifest(
            WORKER.replace("spec: {", "spec: {priorityClassName: high, "),
            spec="  runPolicy: {schedulingPolicy: {priorityClass: high}}\n",
        ),
        [
            "5: spec.runPolicy.schedulingPolicy.priorityClass: is refused: it is an object of Kubernetes",
            f"7: {AT}.template.spec.priorityClassName: is refused: it is an object",
        ],
    ),
    "a priority out of bounds": (
        manifest(WORKER.replace("spec: {", "spec: {priority: 2000000000, ")),
        [f"6: {AT}.template.spec.priority: must be at most 1000000000"],
    ),
    "a time before the end": (
        manifest(spec="  runPolicy: {ttlSecondsAfterFinished: -1}\n"),
        ["5: spec.runPolicy.ttlSecondsAfterFinished: must be at least 0"],
    ),
    "no replica types": (
        HEAD + "spec: {}\n",
        ["4: spec.tfReplicaSpecs: missing; add at least one of Chief,"],
    ),
    "a replica type that there is none of": (
        manifest(WORKER.replace("Worker", "Wroker")),
        ["6: spec.tfReplicaSpecs.Wroker: is no replica type of a TFJob; did you mean 'Worker'?"],
    ),
    "a replica type twice": (
        manifest(f"{WORKER}\n    {WORKER.replace('Worker', 'worker')}"),
        ["7: spec.tfReplicaSpecs.worker: is the same replica type as Worker; keep one of the two"],
    ),
    "an empty replica type": (manifest("Worker:"), [f"6: {AT}: is empty; fill it in or remove it"]),
    "two that lead": (
        manifest(f"{WORKER.replace('Worker', 'Chief')}\n    {WORKER.replace('Worker', 'Master')}"),
        ["7: spec.tfReplicaSpecs.Master: a job has a chief or a master, not both"],
    ),
    "two chiefs": (
        manifest(WORKER.replace("Worker: {", "Chief: {replicas: 2, ")),
        ["6: spec.tfReplicaSpecs.Chief.replicas: there are 2 chiefs; set it to 1"],
    ),
    "no replicas": (replica("replicas: 0"), [f"6: {AT}.replicas: must be at least 1"]),
    "replicas as text": (
        replica("replicas: '2'"),
        [f"6: {AT}.replicas: must be a whole number, without quotes or unit"],
    ),
    "an unknown field": (
        replica("replica: 2"),
        [f"6: {AT}.replica: unknown field; did you mean 'replicas'?"],
    ),
    "a merge key": (
        manifest(WORKER.replace("Worker: {", "Worker: {<<: {replicas: 2}, ")),
        [f"6: {AT}.<<: a merge key is not read; write the fields out"],
    ),
    "an unknown field of the container": (
        manifest(more=", comand: [x]"),
        [f"6: {MAIN}.comand: unknown field; did you mean 'command'?"],
    ),
    "a field in another case": (
        manifest(more=", ENV: []"),
        [f"6: {MAIN}.ENV: unknown field; did you mean 'env'?"],
    ),
    "an unknown field of the policy": (
        manifest(spec="  runPolicy: {cleanupPolicy: All}\n"),
        ["5: spec.runPolicy.cleanupPolicy: unknown field; did you mean 'cleanPodPolicy'?"],
    ),
    "another restart policy": (
        replica("restartPolicy: Sometimes"),
        [f"6: {AT}.restartPolicy: 'Sometimes' is not possible; write one of Always, OnFailure, Never"],
    ),
    "two restart policies": (
        manifest(f"{WORKER}\n    {WORKER.replace('Worker: {', 'Chief: {restartPolicy: ExitCode, ')}"),
        ["7: spec.tfReplicaSpecs.Chief.restartPolicy: a job has one policy, and this one has"],
    ),
    "no container of that name": (
        manifest(WORKER.replace("tensorflow", "train")),
        [f"6: {AT}.template.spec.containers: there is no container named tensorflow"],
    ),
    "no pod": (
        manifest("Worker: {replicas: 1}"),
        [f"6: {AT}.template.spec.containers: there is no container"],
    ),
    "a sidecar": (
        manifest(WORKER.replace("[{name", "[{name: log}, {name")),
        [f"6: {AT}.template.spec.containers[0]: 'log': another container beside it is refused"],
    ),
    "an init container": (
        pod("initContainers: [{name: x}]"),
        [f"6: {AT}.template.spec.initContainers: is refused"],
    ),
    "no command": (
        manifest(WORKER.replace(", command: [python, t.py]MORE", ", image: a, args: [x]")),
        [f"6: {MAIN}.command: missing; an image's ENTRYPOINT and CMD are not run"],
    ),
    "a number among the words": (
        manifest(WORKER.replace("t.py]", "t.py, 3]")),
        [f"6: {MAIN}.command: must be a list of texts; put numbers in quotes"],
    ),
    "a number as a value": (
        manifest(more=", env: [{name: A, value: 3}]"),
        [f"6: {MAIN}.env[0].value: must be text; put it in quotes"],
    ),
    "a variable of ours": (
        manifest(more=", env: [{name: B}, {name: TF_CONFIG, value: x}]"),
        [f"6: {MAIN}.env[1].value: TF_CONFIG is set by tf-supervisor for each task"],
    ),
    "a variable without a name": (
        manifest(more=", env: [{value: x}]"),
        [f"6: {MAIN}.env[0]: has no name; add it"],
    ),
    "a secret in a word": (
        manifest(
            WORKER.replace("t.py]", "t.py, $(T)]"),
            ", env: [{name: T, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
        ),
        [f"6: {MAIN}.command[2]: $(T) is known when a task starts and not before; let a shell read it"],
    ),
    "the cluster in an argument": (
        manifest(more=', args: ["$(TF_CONFIG)"]'),
        [f"6: {MAIN}.args[0]: $(TF_CONFIG) is known when a task starts and not before"],
    ),
    "a secret with a bad name": (
        manifest(more=", env: [{name: T, valueFrom: {secretKeyRef: {name: a b, key: k}}}]"),
        [f"6: {MAIN}.env[0].valueFrom.secretKeyRef: the name 'a b.k' is not a valid name"],
    ),
    "a secret that may be missing": (
        manifest(more=", env: [{name: T, valueFrom: {secretKeyRef: {name: a, key: k, optional: true}}}]"),
        [f"6: {MAIN}.env[0].valueFrom.secretKeyRef.optional: is refused: a task never starts without"],
    ),
    "a ConfigMap": (
        manifest(more=", env: [{name: T, valueFrom: {configMapKeyRef: {name: a, key: k}}}]"),
        [f"6: {MAIN}.env[0].valueFrom.configMapKeyRef: is refused: there are no ConfigMaps"],
    ),
    "a field of the pod": (
        manifest(more=", env: [{name: T, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"),
        [f"6: {MAIN}.env[0].valueFrom.fieldRef: is refused: there is no pod"],
    ),
    "all variables of a ConfigMap": (
        manifest(more=", envFrom: [{configMapRef: {name: a}}]"),
        [f"6: {MAIN}.envFrom: is refused: there are no ConfigMaps"],
    ),
    "a bad quantity": (
        manifest(more=", resources: {limits: {memory: 2GiB}}"),
        [f"6: {MAIN}.resources.limits.memory: must be a quantity of Kubernetes, for example 2, 500m or 4Gi"],
    ),
    "half a GPU": (
        manifest(more=", resources: {limits: {nvidia.com/gpu: 500m}}"),
        [f"6: {MAIN}.resources.limits.nvidia.com/gpu: must be a whole number of GPUs"],
    ),
    "another device": (
        manifest(more=", resources: {limits: {amd.com/gpu: 1}}"),
        [f"6: {MAIN}.resources.limits.amd.com/gpu: is refused: nodes have cpu, memory and nvidia.com/gpu"],
    ),
    "more processors than there are": (
        manifest(more=", resources: {requests: {cpu: 5000}}"),
        [f"6: {MAIN}.resources.requests.cpu: must be at most 4096"],
    ),
    "two images": (
        manifest(f"{WORKER}\n    {WORKER.replace('Worker', 'Chief').replace('MORE', ', image: b')}"),
        ["7: spec.tfReplicaSpecs.Chief.template.spec.containers[0].image: a job has one image, and"],
    ),
    "a bad image": (manifest(more=', image: "a b"'), [f"6: {MAIN}.image: 'a b' is not the name of an image"]),
    "another pull policy": (
        manifest(more=", image: a, imagePullPolicy: Often"),
        [f"6: {MAIN}.imagePullPolicy: 'Often' is not possible; write one of Always, IfNotPresent, Never"],
    ),
    "a relative directory": (
        manifest(more=", workingDir: app"),
        [f"6: {MAIN}.workingDir: 'app' must be an absolute path without '..'"],
    ),
    "two directories": (
        manifest(f"{WORKER}\n    {WORKER.replace('Worker', 'Chief').replace('MORE', ', workingDir: /b')}"),
        ["7: spec.tfReplicaSpecs.Chief.template.spec.containers[0].workingDir: a job has one working"],
    ),
    "a volume that is not there": (
        manifest(more=MOUNT),
        [f"6: {MAIN}.volumeMounts[0].name: there is no volume 'v'"],
    ),
    "a claim": (
        manifest(
            WORKER.replace("]}}}", "], volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}}}"), MOUNT
        ),
        [f"6: {AT}.template.spec.volumes[0].persistentVolumeClaim: is refused: it is a volume of Kub"],
    ),
    "a directory of the pod": (
        manifest(WORKER.replace("]}}}", "], volumes: [{name: v, emptyDir: {}}]}}}"), MOUNT),
        [f"6: {AT}.template.spec.volumes[0].emptyDir: is refused: it is a directory of the pod"],
    ),
    "a directory to be made": (
        manifest(
            WORKER.replace(
                "]}}}", "], volumes: [{name: v, hostPath: {path: /d, type: DirectoryOrCreate}}]}}}"
            ),
            MOUNT,
        ),
        [f"6: {AT}.template.spec.volumes[0].hostPath.type: is refused: a directory that is there is mounted"],
    ),
    "a directory without a path": (
        manifest(WORKER.replace("]}}}", "], volumes: [{name: v, hostPath: {}}]}}}"), MOUNT),
        [f"6: {AT}.template.spec.volumes[0].hostPath.path: missing"],
    ),
    "two volumes of a name": (
        manifest(
            WORKER.replace(
                "]}}}", "], volumes: [{name: v, hostPath: {path: /d}}, {name: v, hostPath: {path: /e}}]}}}"
            ),
            MOUNT,
        ),
        [f"6: {AT}.template.spec.volumes[1].name: 'v' is the name of two volumes"],
    ),
    "a value and a secret": (
        manifest(more=", env: [{name: A, value: x, valueFrom: {secretKeyRef: {name: s, key: k}}}]"),
        [f"6: {MAIN}.env[0]: has both value and valueFrom"],
    ),
    "a value from nothing": (
        manifest(more=", env: [{name: A, valueFrom: {}}, {name: B, valueFrom: {fieldRef: {}}}]"),
        [f"6: {MAIN}.env[0].valueFrom: is empty", f"6: {MAIN}.env[1].valueFrom: is empty"],
    ),
    "a secret without a key": (
        manifest(more=", env: [{name: A, valueFrom: {secretKeyRef: {name: s}}}]"),
        [f"6: {MAIN}.env[0].valueFrom.secretKeyRef.key: missing"],
    ),
    "a request that is no quantity beside a limit": (
        manifest(more=", resources: {requests: {cpu: -1}, limits: {cpu: 1}}"),
        [f"6: {MAIN}.resources.requests.cpu: must be a quantity of Kubernetes"],
    ),
    "variables that grow without end": (
        manifest(more=f", env: [{{name: A, value: {'x' * 100}}}, {', '.join(GROWING)}]"),
        [f"6: {MAIN}.env[3].value: $(VAR) makes more than 120 KiB"],
    ),
    "a number of thousands of digits": (
        manifest(spec=f"  runPolicy: {{activeDeadlineSeconds: 0x{'F' * 6000}}}\n"),
        [
            "5: spec.runPolicy.activeDeadlineSeconds: cannot read '0xFF",
            "5: spec.runPolicy.activeDeadlineSeconds: must be a whole number",
        ],
    ),
    "a directory of the node's own": (
        manifest(WORKER.replace("]}}}", "], volumes: [{name: v, hostPath: {path: /etc}}]}}}"), MOUNT),
        [f"6: {AT}.template.spec.volumes[0].hostPath.path: /etc is or holds /etc, which is the node's own"],
    ),
    "a mount over the image": (
        manifest(
            WORKER.replace("]}}}", "], volumes: [{name: v, hostPath: {path: /d}}]}}}"),
            MOUNT.replace("/data", "/usr/bin"),
        ),
        [f"6: {MAIN}.volumeMounts[0].mountPath: /usr/bin is or holds /usr/bin, which is the image's own"],
    ),
    "a user": (
        manifest(more=", securityContext: {runAsUser: 0}"),
        [f"6: {MAIN}.securityContext: is refused: the node's agent chooses users"],
    ),
    "the node's processes": (
        pod("hostPID: true"),
        [f"6: {AT}.template.spec.hostPID: is refused: tasks do not see"],
    ),
    "affinity": (
        pod("affinity: {nodeAffinity: {}}"),
        [f"6: {AT}.template.spec.affinity: is refused: nodes are chosen by nodeSelector: give them labels"],
    ),
    "Windows": (
        pod("os: {name: windows}"),
        [f"6: {AT}.template.spec.os.name: 'windows' is not possible; write linux"],
    ),
    "another controller": (
        manifest(spec="  runPolicy: {managedBy: kueue.x-k8s.io/multikueue}\n"),
        ["5: spec.runPolicy.managedBy: 'kueue.x-k8s.io/multikueue' is not possible; write kubeflow"],
    ),
    "no time": (
        manifest(spec="  runPolicy: {activeDeadlineSeconds: 0}\n"),
        ["5: spec.runPolicy.activeDeadlineSeconds: must be at least 1"],
    ),
    "too much time": (
        manifest(spec="  runPolicy: {activeDeadlineSeconds: 99999999}\n"),
        ["5: spec.runPolicy.activeDeadlineSeconds: '99999999s' is more than a year; give a shorter duration"],
    ),
    "fewer retries than none": (
        manifest(spec="  runPolicy: {backoffLimit: -1}\n"),
        ["5: spec.runPolicy.backoffLimit: must be at least 0"],
    ),
    "another cleaning": (
        manifest(spec="  runPolicy: {cleanPodPolicy: Some}\n"),
        ["5: spec.runPolicy.cleanPodPolicy: 'Some' is not possible; write one of All, Running, None"],
    ),
    "a part of the gang": (
        manifest(
            WORKER.replace("Worker: {", "Worker: {replicas: 3, "),
            spec="  runPolicy: {schedulingPolicy: {minAvailable: 2}}\n",
        ),
        ["5: spec.runPolicy.schedulingPolicy.minAvailable: a job starts as a whole, which is 3 tasks"],
    ),
    "an annotation that sets no field": (
        manifest().replace("{name: a}", "{name: a, annotations: {tfsup/strtegy: sync}}"),
        ["3: metadata.annotations.tfsup/strtegy: unknown key; did you mean 'strategy'?"],
    ),
    "an annotation with a wrong value": (
        manifest().replace("{name: a}", '{name: a, annotations: {tfsup/checkpoint.keep: "1"}}'),
        ["3: metadata.annotations.tfsup/checkpoint.keep: must be at least 2"],
    ),
    "an annotation with a list that is no JSON": (
        manifest().replace("{name: a}", '{name: a, annotations: {tfsup/preload: "[numpy]"}}'),
        ['3: metadata.annotations.tfsup/preload: is no list in JSON; write for example \'["a", "b"]\''],
    ),
    "an annotation of a strategy that does not fit": (
        manifest().replace("{name: a}", "{name: a, annotations: {tfsup/strategy: async}}"),
        ["3: metadata.annotations.tfsup/strategy: async needs the roles ps and worker; add ps"],
    ),
    "an annotation of a volume that is not there": (
        manifest().replace("{name: a}", "{name: a, annotations: {tfsup/volumes.x: /d}}"),
        ["3: metadata.annotations.tfsup/volumes.x: there is no volume 'x'"],
    ),
    "an annotation that is no text": (
        manifest().replace("{name: a}", "{name: a, annotations: {tfsup/checkpoint.keep: 5}}"),
        ["3: metadata.annotations: must be a mapping of `key: text` lines; put numbers in quotes"],
    ),
    "an annotation of the pod": (
        manifest(
            WORKER.replace("{template: {", "{template: {metadata: {annotations: {tfsup/strategy: sync}}, ")
        ),
        [f"6: {AT}.template.metadata.annotations.tfsup/strategy: belongs into the TFJob's own metadata"],
    ),
    "two manifests": (
        manifest() + "---\n" + manifest(),
        ["7: a second document begins here; put each into a file"],
    ),
    "a list of manifests": (
        "apiVersion: v1\nkind: List\nitems: []\n",
        ["2: kind: 'List' is not supported; what can be submitted is kind: TFJob, or a job file"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(tmp_path: Path, name: str) -> None:
    text, messages = BAD[name]
    with pytest.raises(UserError) as caught:
        load(tmp_path, text.replace("MORE", ""))
    found = [line.removeprefix(f"{tmp_path}/tfjob.yaml:") for line in str(caught.value).splitlines()]
    assert len(found) == len(messages), found
    for line, message in zip(found, messages, strict=True):
        assert line.startswith(message)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = manifest(
        more=", comand: [x], envFrom: [x], workingDir: x", spec="  sucessPolicy: x\n  successPolicy: y\n"
    )
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    fields = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert fields == ["spec.sucessPolicy", "spec.successPolicy", f"{MAIN}.comand", f"{MAIN}.envFrom"]


def test_what_is_missing_without_a_place_for_checkpoints_is_an_annotation(tmp_path: Path) -> None:
    path = tmp_path / "tfjob.yaml"
    path.write_text(manifest().replace("MORE", ""))
    with pytest.raises(UserError, match=r":3: metadata\.annotations\.tfsup/checkpoint\.uri: missing, and"):
        load_job_file(path, checkpoint_base=None)
