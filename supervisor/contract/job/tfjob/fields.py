"""Every field of a TFJob, and what becomes of it. docs/tfjob.md shows this table.

A field stands for all fields below it that have no row of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

REPLICA = "spec.tfReplicaSpecs.*"
POD = f"{REPLICA}.template.spec"
MAIN = f"{POD}.containers[]"
VOLUME = f"{POD}.volumes[]"
PREFIX = "tfsup/"
"""The annotations that are read begin so."""

VOLUMES = "volumes."
"""The rest of an annotation that names the directory of a volume."""


class Treatment(Enum):
    """The fate of a field."""

    HONOURED = "honoured"
    ANNOTATED = "with an annotation"
    NO_EFFECT = "no effect"
    REFUSED = "refused"
    IGNORED = "ignored"


class FieldType(Enum):
    """The type of a field, and the words in which an error asks for it."""

    TEXT = "text; put it in quotes"
    WHOLE = "a whole number, without quotes or unit"
    FLAG = "true or false"
    QUANTITY = "a quantity of Kubernetes, for example 2, 500m or 4Gi"
    TEXTS = "a list of texts; put numbers in quotes"
    MAP = "a mapping of `key: text` lines; put numbers in quotes"
    LIST = "a list"
    OBJECT = "a mapping of `key: value` lines"
    ANY = "anything"


@dataclass(frozen=True, slots=True)
class Field:
    """A row. `text`: what the field becomes, or why it has no effect or is refused."""

    path: str
    type: FieldType
    treatment: Treatment
    text: str


@dataclass(slots=True)
class Node:
    """A place in the tree of fields; `row` is None where only fields below have a row."""

    row: Field | None = None
    below: dict[str, Node] = field(default_factory=dict)


def _taken(path: str, kind: FieldType, text: str) -> Field:
    return Field(path, kind, Treatment.HONOURED, text)


def _idle(path: str, text: str) -> Field:
    return Field(path, FieldType.ANY, Treatment.NO_EFFECT, text)


def _refused(path: str, text: str) -> Field:
    return Field(path, FieldType.ANY, Treatment.REFUSED, text)


def _ignored(path: str) -> Field:
    return Field(path, FieldType.ANY, Treatment.IGNORED, "the API server's own")


_DIRECTORY = f"`container.mounts`: the directory of the nodes in `{PREFIX}volumes.NAME`; refused without it"
_SIDECAR = "a task is one program under tf-supervisor's launcher"
_CLASS = (
    f"its value as the annotation `{PREFIX}priority`: which of the jobs that wait comes first; "
    "refused without it"
)
_PROBE = "the launcher and the progress of the steps are watched (docs/progress.md)"
_NAMES = "tasks know each other by TF_CONFIG; a task has no host name of its own"
_USERS = "the node's agent chooses users, groups and rights of tasks (docs/security.md)"
_IDENTITY = (
    "there is no API of Kubernetes, so no identity in it; give credentials as secrets (docs/job-file.md)"
)

FIELDS = (
    _taken("apiVersion", FieldType.TEXT, "`kubeflow.org/v1`; any other is refused"),
    _taken("kind", FieldType.TEXT, "`TFJob`; any other is refused"),
    _taken("metadata", FieldType.OBJECT, ""),
    _taken("metadata.name", FieldType.TEXT, "`name`"),
    _taken(
        "metadata.generateName",
        FieldType.TEXT,
        "refused without a `name`, or `--name`, by which a job is found again",
    ),
    _taken(
        "metadata.annotations",
        FieldType.MAP,
        f"those that begin with `{PREFIX}`, as below; others have no effect",
    ),
    _idle("metadata.namespace", "a cluster has no namespaces; the name of the job counts alone"),
    _idle("metadata.labels", "nothing selects jobs by labels"),
    _refused("metadata.finalizers", "a job is deleted without asking anybody else"),
    _refused("metadata.ownerReferences", "a job is not deleted with another object"),
    *map(
        _ignored,
        (
            "metadata.uid",
            "metadata.resourceVersion",
            "metadata.generation",
            "metadata.creationTimestamp",
            "metadata.deletionTimestamp",
            "metadata.deletionGracePeriodSeconds",
            "metadata.managedFields",
            "metadata.selfLink",
        ),
    ),
    _ignored("status"),
    _taken("spec", FieldType.OBJECT, ""),
    _taken(
        "spec.enableDynamicWorker",
        FieldType.FLAG,
        "`roles.worker.min` and `max` in place of `count`: an elastic role",
    ),
    _taken(
        "spec.successPolicy",
        FieldType.TEXT,
        "with a chief the job is done when the chief is, with either value. Without one: AllWorkers is "
        "`success_policy: all_workers`, and none, or an empty one, is `success_policy: worker_0`",
    ),
    _taken("spec.runPolicy", FieldType.OBJECT, ""),
    _taken("spec.runPolicy.activeDeadlineSeconds", FieldType.WHOLE, "`limits.wall_time`"),
    _taken(
        "spec.runPolicy.backoffLimit",
        FieldType.WHOLE,
        "`restart.max` and `restart.max_in_window`, in a year: restarts by the program's own faults",
    ),
    _taken(
        "spec.runPolicy.cleanPodPolicy",
        FieldType.TEXT,
        "any value: when a job is done its tasks are ended, and their output is kept",
    ),
    _taken("spec.runPolicy.suspend", FieldType.FLAG, "as `submit --hold`; `start JOB` starts it"),
    _taken(
        "spec.runPolicy.managedBy",
        FieldType.TEXT,
        "`kubeflow.org/training-operator` alone; others mean another controller",
    ),
    _taken(
        "spec.runPolicy.ttlSecondsAfterFinished",
        FieldType.WHOLE,
        "`limits.delete_after`; without it a job stays until `supervisorctl delete`",
    ),
    _taken("spec.runPolicy.schedulingPolicy", FieldType.OBJECT, ""),
    _taken(
        "spec.runPolicy.schedulingPolicy.minAvailable",
        FieldType.WHOLE,
        "all tasks, which start together; fewer with enableDynamicWorker alone, as `roles.worker.min`",
    ),
    _idle(
        "spec.runPolicy.schedulingPolicy.minResources",
        "the resources of all tasks together are what a job waits for",
    ),
    Field("spec.runPolicy.schedulingPolicy.priorityClass", FieldType.TEXT, Treatment.ANNOTATED, _CLASS),
    _refused(
        "spec.runPolicy.schedulingPolicy.queue",
        f"there are no queues: nodeSelector keeps a job to some nodes, and `{PREFIX}priority` says which of "
        "the jobs that wait comes first",
    ),
    _idle(
        "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
        "a job that waits holds no nodes that another could have; `status` says what it waits for",
    ),
    _taken(
        "spec.tfReplicaSpecs",
        FieldType.OBJECT,
        "`roles`: Chief, Master, PS, Worker and Evaluator, in any case; others are refused",
    ),
    _taken(REPLICA, FieldType.OBJECT, ""),
    _taken(f"{REPLICA}.replicas", FieldType.WHOLE, "`roles.ROLE.count`; 1 without it"),
    _taken(
        f"{REPLICA}.restartPolicy",
        FieldType.TEXT,
        "`restart`, as below; `Never` without it. One for all replica types; Always is OnFailure",
    ),
    _taken(f"{REPLICA}.template", FieldType.OBJECT, ""),
    _taken(f"{REPLICA}.template.metadata", FieldType.OBJECT, ""),
    _taken(
        f"{REPLICA}.template.metadata.annotations",
        FieldType.MAP,
        f"no effect; one that begins with `{PREFIX}` is refused: its place is the TFJob's own metadata",
    ),
    *(
        _idle(f"{REPLICA}.template.metadata.{name}", "there are no pods")
        for name in ("finalizers", "labels", "name", "namespace")
    ),
    _taken(POD, FieldType.OBJECT, ""),
    _taken(
        f"{POD}.containers", FieldType.LIST, "the one named `tensorflow`; others are refused: " + _SIDECAR
    ),
    _taken(MAIN, FieldType.OBJECT, ""),
    _taken(f"{MAIN}.name", FieldType.TEXT, "`tensorflow`"),
    _taken(
        f"{MAIN}.image",
        FieldType.TEXT,
        "`container.image`, one for all replica types; without it the node's own runtime and default image",
    ),
    _taken(
        f"{MAIN}.imagePullPolicy",
        FieldType.TEXT,
        "`container.pull`; without it Always for the tag latest, else IfNotPresent",
    ),
    _taken(
        f"{MAIN}.command",
        FieldType.TEXTS,
        "`roles.ROLE.command`, with $(VAR) as in Kubernetes; required: an image's ENTRYPOINT is not run",
    ),
    _taken(f"{MAIN}.args", FieldType.TEXTS, "appended to command"),
    _taken(
        f"{MAIN}.workingDir",
        FieldType.TEXT,
        "`workdir`, one for all replica types; with an image `/` without it: its WORKDIR is not read",
    ),
    _taken(f"{MAIN}.env", FieldType.LIST, "`roles.ROLE.env`; of two of a name the later one counts"),
    _taken(f"{MAIN}.env[]", FieldType.OBJECT, ""),
    _taken(f"{MAIN}.env[].name", FieldType.TEXT, "the variable"),
    _taken(
        f"{MAIN}.env[].value",
        FieldType.TEXT,
        "its value, with $(VAR) as in Kubernetes; braces stay as they are",
    ),
    _taken(f"{MAIN}.env[].valueFrom", FieldType.OBJECT, ""),
    _taken(
        f"{MAIN}.env[].valueFrom.secretKeyRef",
        FieldType.OBJECT,
        "`{secret: NAME.KEY}`, which the operators keep",
    ),
    _taken(f"{MAIN}.env[].valueFrom.secretKeyRef.name", FieldType.TEXT, "NAME"),
    _taken(f"{MAIN}.env[].valueFrom.secretKeyRef.key", FieldType.TEXT, "KEY"),
    _refused(
        f"{MAIN}.env[].valueFrom.secretKeyRef.optional", "a task never starts without a secret that it names"
    ),
    _refused(f"{MAIN}.env[].valueFrom.configMapKeyRef", "there are no ConfigMaps; write the value"),
    _refused(
        f"{MAIN}.env[].valueFrom.fieldRef",
        "there is no pod; TFSUP_JOB, TFSUP_TASK and TF_CONFIG name the task",
    ),
    _refused(f"{MAIN}.env[].valueFrom.resourceFieldRef", "there is no pod; write the value"),
    _refused(f"{MAIN}.envFrom", "there are no ConfigMaps, and secrets are named one by one; write env"),
    _taken(f"{MAIN}.resources", FieldType.OBJECT, ""),
    _taken(
        f"{MAIN}.resources.limits",
        FieldType.OBJECT,
        "`roles.ROLE.resources`: cpu to `cpus`, memory to `memory`, nvidia.com/gpu to `gpus`; "
        "ephemeral-storage has no effect, others are refused",
    ),
    _taken(
        f"{MAIN}.resources.requests",
        FieldType.OBJECT,
        "the same, where limits does not name the resource; in a container it is a limit, too",
    ),
    _refused(f"{MAIN}.resources.claims", "there is no dynamic allocation of devices; ask for nvidia.com/gpu"),
    _idle(
        f"{MAIN}.ports",
        "each task gets a port of the cluster's range, and TF_CONFIG has it; `{port}` is its number",
    ),
    _taken(f"{MAIN}.volumeMounts", FieldType.LIST, "`container.mounts`, the same for all replica types"),
    _taken(f"{MAIN}.volumeMounts[]", FieldType.OBJECT, ""),
    _taken(f"{MAIN}.volumeMounts[].name", FieldType.TEXT, "the volume"),
    _taken(f"{MAIN}.volumeMounts[].mountPath", FieldType.TEXT, "`target`"),
    _taken(f"{MAIN}.volumeMounts[].readOnly", FieldType.FLAG, "`read_only`; false without it"),
    _taken(f"{MAIN}.volumeMounts[].subPath", FieldType.TEXT, "appended to `source`"),
    _refused(f"{MAIN}.volumeMounts[].subPathExpr", "write subPath; a mount is the same for all tasks"),
    _refused(f"{MAIN}.volumeMounts[].mountPropagation", "mounts made later do not show in a container"),
    _refused(f"{MAIN}.volumeMounts[].recursiveReadOnly", "write readOnly: true"),
    _idle(f"{MAIN}.livenessProbe", _PROBE),
    _idle(f"{MAIN}.readinessProbe", _PROBE),
    _idle(f"{MAIN}.startupProbe", _PROBE),
    _refused(f"{MAIN}.lifecycle", "put what has to come first or last into the command: [sh, -c, ...]"),
    _refused(f"{MAIN}.securityContext", _USERS),
    _refused(f"{MAIN}.volumeDevices", "tasks get no block devices"),
    _refused(
        f"{MAIN}.restartPolicy", "Kubernetes knows it for init containers alone; write the replica type's own"
    ),
    _idle(f"{MAIN}.resizePolicy", "a task's resources do not change while it runs"),
    *(
        _refused(f"{MAIN}.{name}", "a task has no terminal and no standard input")
        for name in ("stdin", "stdinOnce", "tty")
    ),
    *(
        _idle(f"{MAIN}.{name}", "`explain` shows the last lines of the output")
        for name in ("terminationMessagePath", "terminationMessagePolicy")
    ),
    _taken(f"{POD}.volumes", FieldType.LIST, ""),
    _taken(VOLUME, FieldType.OBJECT, ""),
    _taken(f"{VOLUME}.name", FieldType.TEXT, "what volumeMounts names"),
    _taken(
        f"{VOLUME}.hostPath",
        FieldType.OBJECT,
        "a directory of the node that its agent lets jobs mount (docs/docker.md)",
    ),
    _taken(f"{VOLUME}.hostPath.path", FieldType.TEXT, "`source`"),
    _taken(
        f"{VOLUME}.hostPath.type",
        FieldType.TEXT,
        "Directory or none; others are refused, as nothing is made on a node",
    ),
    _taken(
        f"{VOLUME}.emptyDir",
        FieldType.OBJECT,
        "at /dev/shm the container's own, at /tmp too; elsewhere a directory that an annotation names",
    ),
    _taken(
        f"{VOLUME}.emptyDir.medium", FieldType.TEXT, "no effect at /dev/shm and /tmp, which are in memory"
    ),
    _taken(f"{VOLUME}.emptyDir.sizeLimit", FieldType.QUANTITY, "at /dev/shm `container.shm`"),
    *(
        Field(f"{VOLUME}.{name}", FieldType.OBJECT, Treatment.ANNOTATED, _DIRECTORY)
        for name in (
            *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi"),
            *("downwardAPI", "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo"),
            *("glusterfs", "image", "iscsi", "nfs", "persistentVolumeClaim", "photonPersistentDisk"),
            *(
                "portworxVolume",
                "projected",
                "quobyte",
                "rbd",
                "scaleIO",
                "secret",
                "storageos",
                "vsphereVolume",
            ),
        )
    ),
    _taken(
        f"{POD}.nodeSelector",
        FieldType.MAP,
        "`roles.ROLE.resources.labels`: labels in the nodes' agents' configuration",
    ),
    _taken(f"{POD}.hostNetwork", FieldType.FLAG, "either value: tasks use the node's own network"),
    _taken(
        f"{POD}.terminationGracePeriodSeconds",
        FieldType.WHOLE,
        "`limits.save_grace`, for `stop --save`; of several the longest",
    ),
    _idle(f"{POD}.restartPolicy", "the replica type's own counts, as in Kubeflow"),
    _refused(
        f"{POD}.initContainers",
        f"{_SIDECAR}; put it before the program: [sh, -c, 'prepare && exec python train.py']",
    ),
    _refused(f"{POD}.ephemeralContainers", f"{_SIDECAR}; `supervisorctl exec` runs a command beside it"),
    _refused(f"{POD}.activeDeadlineSeconds", "it ends one pod; write runPolicy.activeDeadlineSeconds"),
    _refused(f"{POD}.affinity", "nodes are chosen by nodeSelector: give them labels"),
    _refused(f"{POD}.topologySpreadConstraints", "nodes are chosen by nodeSelector: give them labels"),
    _refused(f"{POD}.nodeName", "nodes are chosen by nodeSelector: give this one a label"),
    _idle(f"{POD}.tolerations", "nodes have no taints; a cordoned one takes no task"),
    _idle(f"{POD}.schedulerName", "the leader chooses the nodes"),
    _refused(f"{POD}.schedulingGates", "nobody would open the gate; write runPolicy.suspend: true"),
    _idle(f"{POD}.preemptionPolicy", "no job takes the nodes of one that runs"),
    _taken(f"{POD}.priority", FieldType.WHOLE, "`priority`; of several the highest"),
    Field(f"{POD}.priorityClassName", FieldType.TEXT, Treatment.ANNOTATED, _CLASS),
    *(_refused(f"{POD}.{name}", _IDENTITY) for name in ("serviceAccount", "serviceAccountName")),
    _idle(f"{POD}.automountServiceAccountToken", _IDENTITY),
    _idle(f"{POD}.enableServiceLinks", "there are no services, so no variables that name them"),
    _idle(f"{POD}.dnsPolicy", "a task asks its node's name servers"),
    _refused(f"{POD}.dnsConfig", "a task asks its node's name servers"),
    _refused(f"{POD}.hostAliases", "a task asks its node's name servers; name the hosts there"),
    *(_refused(f"{POD}.{name}", _NAMES) for name in ("hostname", "setHostnameAsFQDN", "subdomain")),
    *(
        _refused(f"{POD}.{name}", "tasks do not see the node's processes, its IPC, or each other's")
        for name in ("hostIPC", "hostPID", "shareProcessNamespace")
    ),
    _idle(f"{POD}.hostUsers", "the node's agent chooses the users of tasks (docs/security.md)"),
    _idle(f"{POD}.imagePullSecrets", "the node's dockerd must be able to pull the image"),
    _taken(f"{POD}.os", FieldType.OBJECT, ""),
    _taken(f"{POD}.os.name", FieldType.TEXT, "`linux`; any other is refused"),
    _idle(f"{POD}.overhead", "a container costs nothing that is counted"),
    _refused(f"{POD}.readinessGates", "a task is ready when its program runs"),
    _refused(f"{POD}.resourceClaims", "there is no dynamic allocation of devices; ask for nvidia.com/gpu"),
    _refused(f"{POD}.runtimeClassName", "the node's agent chooses the runtime; GPUs come by nvidia.com/gpu"),
    _refused(f"{POD}.securityContext", _USERS),
)


def parts(path: str) -> Iterator[str]:
    """The steps of a path: a list is a step, and `[]`, any item of it, is one."""
    for part in path.split("."):
        yield part.removesuffix("[]")
        if part.endswith("[]"):
            yield "[]"


@cache
def tree() -> Node:
    """The fields as a tree."""
    top = Node()
    for row in FIELDS:
        node = top
        for part in parts(row.path):
            node = node.below.setdefault(part, Node())
        node.row = row
    return top
