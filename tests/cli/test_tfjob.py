"""A TFJob where a job file is expected: what it becomes, and the message, with its line, for each mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from supervisor.adapters.files.jobfile import JobFile, load_job_file
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import Mount, Pull, Rule, Strategy, SuccessPolicy
from tests.cli.shell import ctl

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


def test_every_field_that_is_honoured(tmp_path: Path) -> None:
    text = FULL
    job = load(tmp_path, text)
    spec = job.spec
    assert (spec.name, spec.strategy, spec.workdir) == ("full", Strategy.COORDINATOR, "/app")
    assert [(role.name, role.count) for role in spec.roles] == [
        *(("chief", 1), ("ps", 1), ("worker", 1), ("evaluator", 1)),
    ]
    chief = spec.role("chief")
    assert chief.command == (
        *("python", "train.py", "--rate=0.1", '--json={{"a": {{b}}}}', "$(RATE)", "$(NONE)"),
    )
    assert chief.env == {"RATE": "0.1", "TEXT": "{{task_index}} 0.1"}
    assert chief.secrets == {"TOKEN": "hf.token"}
    assert (chief.resources.cpus, chief.resources.memory_bytes, chief.resources.gpus) == (0.5, 2 << 30, 1)
    assert chief.resources.labels == {"gpu": "h100"}
    assert spec.role("evaluator").follow
    assert spec.env == {"MODEL_DIR": "{checkpoint_dir}", "NUMBER": "010"}
    assert (spec.checkpoint.uri, spec.checkpoint.keep) == ("file:///shared/full", 7)
    assert spec.preload == ("tensorflow", "numpy")
    assert (spec.limits.wall_time_ms, spec.limits.save_grace_ms) == (3_600_000, 40_000)
    assert (spec.limits.delete_after_ms, spec.priority) == (60_000, 1000)
    assert (spec.restart.max_restarts, spec.restart.max_in_window) == (4, 4)
    assert spec.restart.window_ms == 365 * 86_400_000
    assert spec.container is not None
    assert (spec.container.image, spec.container.pull) == ("registry:5000/team/train:2.21", Pull.MISSING)
    assert spec.container.shm_bytes == 1536 << 20
    assert spec.container.mounts == (
        Mount("/srv/data", "/data", read_only=True),
        Mount("/data/claim/runs", "/train", read_only=False),
    )
    assert not job.hold


def test_what_has_no_effect_is_told_once(tmp_path: Path) -> None:
    notes = load(tmp_path, FULL).document.notes
    told = [note.partition(".yaml:")[2].partition(":")[2].partition(": ")[0].strip() for note in notes]
    main = "spec.tfReplicaSpecs.Chief.template.spec"
    assert sorted(told) == sorted(
        [
            f"{main}.tolerations",
            f"{main}.containers[0].ports",
            f"{main}.containers[0].resources.requests.memory",
        ]
    )


def test_a_job_of_defaults(tmp_path: Path) -> None:
    job = load(tmp_path, manifest())
    assert job.spec.strategy is Strategy.PLAIN
    assert job.spec.role("worker").count == 1
    assert job.spec.checkpoint.uri == f"{BASE}/a"
    assert job.spec.workdir == str(tmp_path)
    assert job.spec.container is None
    assert (job.spec.restart.max_restarts, job.spec.restart.max_in_window) == (0, 0)
    assert job.document.notes == []


@pytest.mark.parametrize(
    ("policy", "most", "exits"),
    [
        ("Never", 0, None),
        ("Always", 3, None),
        ("OnFailure", 3, None),
        ("ExitCode", 3, Rule.FAIL),
    ],
)
def test_restart_policies(tmp_path: Path, policy: str, most: int, exits: Rule | None) -> None:
    restart = load(tmp_path, replica(f"restartPolicy: {policy}")).spec.restart
    assert restart.max_restarts == most
    assert restart.rules.get("program_exit") is exits
    assert restart.retry_from == (128 if policy == "ExitCode" else 0)
    assert "program_signal" not in restart.rules


def test_always_and_on_failure_are_one_policy(tmp_path: Path) -> None:
    other = WORKER.replace("Worker: {", "Worker: {restartPolicy: Always, ")
    chief = WORKER.replace("Worker: {", "Chief: {restartPolicy: OnFailure, ")
    assert load(tmp_path, manifest(f"{other}\n    {chief}")).spec.restart.max_restarts == 3


def test_dynamic_workers_are_an_elastic_role(tmp_path: Path) -> None:
    text = manifest(
        WORKER.replace("Worker: {", "Worker: {replicas: 4, ") + "\n    " + WORKER.replace("Worker", "PS"),
        spec="  enableDynamicWorker: true\n  runPolicy: {schedulingPolicy: {minAvailable: 3}}\n",
    )
    job = load(tmp_path, text)
    worker = job.spec.role("worker")
    assert (worker.least, worker.most, job.spec.strategy) == (2, 4, Strategy.ASYNC)
    assert any("not `sparseCluster`" in note for note in job.document.notes)
    fixed = load(tmp_path, text.replace("  runPolicy: {schedulingPolicy: {minAvailable: 3}}\n", ""))
    assert fixed.spec.role("worker").least == 1


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ("", SuccessPolicy.WORKER_0),
        ('successPolicy: ""', SuccessPolicy.WORKER_0),
        ("successPolicy: AllWorkers", SuccessPolicy.ALL_WORKERS),
    ],
)
def test_without_a_chief_the_success_policy_counts(tmp_path: Path, given: str, policy: SuccessPolicy) -> None:
    two = WORKER.replace("Worker: {", "Worker: {replicas: 2, ")
    spec = f"  {given}\n" if given else ""
    assert load(tmp_path, manifest(two, spec=spec)).spec.success_policy is policy
    led = manifest(f"{two}\n    {WORKER.replace('Worker', 'Chief')}", spec=spec)
    assert load(tmp_path, led).spec.success_policy is SuccessPolicy.ALL_WORKERS


def test_the_highest_priority_of_the_pods_is_the_jobs(tmp_path: Path) -> None:
    text = manifest(
        WORKER.replace("spec: {", "spec: {priority: 7, ")
        + "\n    "
        + WORKER.replace("Worker", "Chief").replace("spec: {", "spec: {priority: -1, ")
    )
    assert load(tmp_path, text).spec.priority == 7


def test_a_suspended_job_is_held(tmp_path: Path) -> None:
    assert load(tmp_path, manifest(spec="  runPolicy: {suspend: true}\n")).hold


def test_a_name_from_the_command_line(tmp_path: Path) -> None:
    text = manifest().replace("{name: a}", "{generateName: a-}")
    assert load(tmp_path, text, "b").spec.name == "b"


@pytest.mark.parametrize(
    ("image", "pull"),
    [
        ("a", Pull.ALWAYS),
        ("a:latest", Pull.ALWAYS),
        ("r:5000/a", Pull.ALWAYS),
        ("a:1", Pull.MISSING),
        (f"a@sha256:{'0' * 64}", Pull.MISSING),
    ],
)
def test_an_image_is_pulled_as_kubernetes_does(tmp_path: Path, image: str, pull: Pull) -> None:
    spec = load(tmp_path, manifest(more=f', image: "{image}"')).spec
    assert spec.container is not None
    assert spec.container.pull is pull
    assert spec.workdir == "/"
    other = load(tmp_path, manifest(more=f', image: "{image}", imagePullPolicy: Never')).spec
    assert other.container is not None
    assert other.container.pull is Pull.NEVER


def test_shipped_code_is_where_tasks_run_in_an_image_too(tmp_path: Path) -> None:
    text = manifest(more=", image: a").replace("{name: a}", "{name: a, annotations: {tfsup/code.dir: .}}")
    job = load(tmp_path, text)
    assert job.code is not None
    assert job.code.directory == job.spec.workdir == str(tmp_path)


def test_a_command_may_be_an_annotation(tmp_path: Path) -> None:
    bare = manifest(WORKER.replace(", command: [python, t.py]MORE", ", image: a:1"))
    text = bare.replace("{name: a}", """{name: a, annotations: {tfsup/command: '["python", "/opt/t.py"]'}}""")
    assert load(tmp_path, text).spec.role("worker").command == ("python", "/opt/t.py")
    own = text.replace("tfsup/command", "tfsup/roles.worker.command")
    assert load(tmp_path, own).spec.role("worker").command == ("python", "/opt/t.py")
    with pytest.raises(UserError, match=r"containers\[0\]\.args: needs a command before it"):
        load(tmp_path, text.replace("a:1", "a:1, args: [x]"))


JUNK = st.sampled_from(
    [None, True, 0, -1, 1 << 70, 0.5, "", "x", "{", "$(", "/", [], [None], ["x"], {}, {"x": 1}]
)


def places(value: object, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Each place in a document."""
    yield where
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*where, key))


def changed(value: object, where: tuple[str | int, ...], junk: object) -> object:
    """The document with something else in one place."""
    if not where:
        return junk
    assert isinstance(value, dict | list)
    return (
        {key: changed(item, where[1:], junk) if key == where[0] else item for key, item in value.items()}
        if isinstance(value, dict)
        else [changed(item, where[1:], junk) if key == where[0] else item for key, item in enumerate(value)]
    )


WHOLE = YAML(typ="safe").load(FULL)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(list(places(WHOLE))), JUNK), min_size=1, max_size=3))
def test_whatever_a_manifest_holds_is_read_or_told_of(
    tmp_path: Path, changes: list[tuple[tuple[str | int, ...], object]]
) -> None:
    text: object = WHOLE
    for where, junk in changes:
        with suppress(AssertionError, KeyError):
            text = changed(text, where, junk)
    with suppress(UserError):
        load(tmp_path, json.dumps(text))


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


def test_the_job_file_that_is_printed_is_the_same_job(tmp_path: Path) -> None:
    text = FULL
    (tmp_path / "tfjob.yaml").write_text(text)
    done = ctl(tmp_path, "submit", "--convert", "tfjob.yaml")
    assert (done.returncode, done.stderr.count("note: tfjob.yaml:")) == (0, 3)
    (tmp_path / "job.yaml").write_text(done.stdout)
    made = load_job_file(tmp_path / "job.yaml", checkpoint_base=BASE)
    assert made.spec == load(tmp_path, text).spec
    assert made.document.notes == []


def test_a_suspended_job_is_printed_with_a_word_about_that(tmp_path: Path) -> None:
    (tmp_path / "tfjob.yaml").write_text(manifest(spec="  runPolicy: {suspend: true}\n").replace("MORE", ""))
    assert ctl(tmp_path, "submit", "--convert", "tfjob.yaml").stdout.startswith(
        "# Made of tfjob.yaml, and meant for the same directory. Its job is suspended: submit --hold\n"
    )


def test_a_job_file_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: a\n")
    done = ctl(tmp_path, "submit", "--convert", "job.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: job.yaml is no TFJob" in done.stderr


def test_a_manifest_is_validated_like_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "tfjob.yaml").write_text(FULL)
    done = ctl(tmp_path, "validate", "--offline", "tfjob.yaml", "--output", "json")
    assert json.loads(done.stdout)["detail"] == "the file is valid: 4 tasks"
    assert "note: tfjob.yaml:" in done.stderr


def test_the_form_of_kubectl_is_one_of_json(tmp_path: Path) -> None:
    done = ctl(tmp_path, "status", "--as", "tfjob")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --as tfjob is a form of JSON; add --output json" in done.stderr
