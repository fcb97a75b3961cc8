"""The manifests for Kubernetes: valid to a strict API server, and in agreement with each other."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from supervisor.contract.errors import UserError
from tests.examples.harness import ROOT
from tests.kubernetes.printed import LEAST, Document, Printed, allowed, choices, hadoop, manifests
from tests.kubernetes.schema import load

API = load()
CHECK = ROOT / "var/kubernetes-1.37/check"
OLDEST, NEWEST = 29, 37
"""Releases of Kubernetes whose API the manifests are checked against."""
SETS = ("supervisor", "agent")


def test_every_document_is_valid_to_a_strict_api_server(tmp_path: Path) -> None:
    seen = set()
    for words in choices(tmp_path):
        for (kind, name), document in manifests(*words).documents.items():
            seen.add(kind)
            for version in (OLDEST, NEWEST):
                assert API.problems(document, version) == [], (words, name)
    assert seen == set(API.objects)


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        (
            ("spec", "template", "spec", "volumns"),
            [],
            "StatefulSet.spec.template.spec: PodSpec has no field volumns",
        ),
        (("spec", "replicas"), "2", "StatefulSet.spec.replicas: '2' is no integer"),
        (("spec", "replicas"), True, "StatefulSet.spec.replicas: True is no integer"),
        (
            ("spec", "template", "spec", "containers"),
            {},
            "StatefulSet.spec.template.spec.containers: no list",
        ),
        (("spec", "template", "spec", "containers"), [{}], "containers[0]: Container needs name"),
        (("metadata", "labels"), {"a": 1}, "StatefulSet.metadata.labels.a: 1 is no string"),
        (("apiVersion",), "apps/v2", "apps/v2 StatefulSet: no such kind"),
    ],
)
def test_the_check_finds_mistakes(where: tuple[str, ...], value: object, told: str) -> None:
    document = copy.deepcopy(manifests(*LEAST).find("StatefulSet", "agent"))
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    assert told in "\n".join(API.problems(document, NEWEST))


def test_a_field_of_a_later_release_is_none_of_an_earlier_one() -> None:
    document = manifests(*LEAST).find("PodDisruptionBudget", "agent")
    assert API.problems(document, 25) == [
        "PodDisruptionBudget.spec: PodDisruptionBudgetSpec has no field unhealthyPodEvictionPolicy in 1.25"
    ]


@pytest.mark.slow
@pytest.mark.skipif(not CHECK.exists(), reason="deploy/build-kubernetes-check.sh needs a recent Go")
def test_the_validation_of_the_api_server_has_nothing_against_them(tmp_path: Path) -> None:
    def check(text: str) -> tuple[int, str]:
        done = subprocess.run([CHECK], input=text, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    for words in choices(tmp_path):
        assert check(manifests(*words).text) == (0, ""), words
    wrong = manifests(*LEAST).text
    for right, mistake in (("maxSkew: 1", "maxSkew: 0"), ("runAsNonRoot: true", "runAsNonRoot: false")):
        assert right in wrong
        wrong = wrong.replace(right, mistake)
    code, said = check(wrong)
    assert code == 1
    assert "maxSkew: Invalid value: 0: must be greater than zero" in said
    assert "runAsNonRoot != true" in said


def test_what_documents_name_is_there(tmp_path: Path) -> None:
    for words in choices(tmp_path):
        printed = manifests(*words)
        for name in SETS:
            spec = printed.find("StatefulSet", name)["spec"]
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= labels.items()
            assert printed.find("Service", spec["serviceName"])["spec"]["selector"].items() <= labels.items()
            budget = printed.find("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"]
            assert budget.items() <= labels.items()
            pod = spec["template"]["spec"]
            assert ("ServiceAccount", pod["serviceAccountName"]) in printed.documents
            claims = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", ())}
            volumes = {each["name"]: each for each in pod["volumes"]}
            used = {
                mount["name"]
                for container in (*pod["initContainers"], *pod["containers"])
                for mount in container["volumeMounts"]
            }
            assert used == volumes.keys() | claims
            for each in volumes.values():
                if "configMap" in each:
                    assert ("ConfigMap", each["configMap"]["name"]) in printed.documents
        others = {
            each["metadata"].get("namespace")
            for (kind, _), each in printed.documents.items()
            if kind != "Namespace"
        }
        assert others == {"tf-supervisor"}


def test_no_pod_has_a_right_that_it_does_not_need(tmp_path: Path) -> None:
    """The level `restricted` of Pod Security, a root that is read-only, and no way to the API."""
    printed = manifests(*LEAST)
    assert printed.find("Namespace", "tf-supervisor")["metadata"]["labels"] == {
        "app.kubernetes.io/name": "tf-supervisor",
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    assert not {kind for kind, _ in printed.documents} & {"Role", "RoleBinding", "ClusterRole"}
    for name in SETS:
        assert printed.find("ServiceAccount", name)["automountServiceAccountToken"] is False
        pod = printed.pod(name)
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & pod.keys()
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
        assert all(each.keys() - {"name"} <= allowed for each in pod["volumes"])
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_programs_see_the_certificate_of_their_own_pod_alone() -> None:
    for name in SETS:
        pod = manifests(*LEAST).pod(name)
        (container,) = pod["containers"]
        assert "secrets" not in {mount["name"] for mount in container["volumeMounts"]}


def policy(printed: Printed, name: str) -> Document:
    found: Document = printed.find("NetworkPolicy", name)["spec"]
    return found


def test_connections_are_those_that_the_daemons_make(tmp_path: Path) -> None:
    printed = manifests(
        *("training", "--image", "x", "--etcd", "etcd-1:2379", "--etcd", "10.0.0.2:2381", *hadoop(tmp_path))
    )
    assert policy(printed, "nothing-else") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    outside = {
        *{("anybody", "TCP:2379"), ("10.0.0.2/32", "TCP:2381"), ("anybody", "TCP:53"), ("anybody", "UDP:53")},
        *{("10.1.0.0/16", "TCP:8020"), ("10.1.0.0/16", "TCP:9866-9867")},
    }
    ours = policy(printed, "supervisor")
    assert allowed(ours["ingress"]) == {("agent", "TCP:7600"), ("true", "TCP:7600"), ("true", "TCP:7602")}
    assert allowed(ours["egress"]) == {("agent", "TCP:7601"), *outside}
    agents = policy(printed, "agent")
    tasks = ("agent", "TCP:20000-29999")
    assert allowed(agents["ingress"]) == {("supervisor", "TCP:7601"), tasks, ("true", "TCP:7602")}
    assert allowed(agents["egress"]) == {("supervisor", "TCP:7600"), tasks, *outside}


def test_nccl_may_listen_at_any_port_between_agents() -> None:
    agents = policy(manifests(*LEAST, "--gpus", "1"), "agent")
    assert ("agent", "TCP:any") in allowed(agents["ingress"]) & allowed(agents["egress"])


def test_an_agent_has_the_time_and_the_room_that_it_was_promised() -> None:
    printed = manifests(
        *LEAST, "--notice", "300", "--memory", "8GiB", "--shm", "2GiB", "--gpus", "4", "--cpus", "16"
    )
    pod = printed.pod("agent")
    (container,) = pod["containers"]
    words = container["command"]
    assert words[words.index("--notice") + 1] == "300"
    assert words[words.index("--memory") + 1] == str(8 << 30)
    assert pod["terminationGracePeriodSeconds"] >= 300 + 5 + 15 + 15
    limits = {"cpu": "16", "memory": "11264Mi", "nvidia.com/gpu": "4"}
    assert container["resources"]["limits"] == limits
    assert container["resources"]["requests"] == {**limits, "ephemeral-storage": "51200Mi"}


def test_a_pod_without_gpus_sees_none() -> None:
    (container,) = manifests(*LEAST).pod("agent")["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("training", "--image", "x", "--etcd", "e:2379"), "checkpoints need a place"),
        ((*LEAST, "--etcd", "unix:/run/etcd"), "a pod reaches no socket"),
        ((*LEAST, "--etcd", "etcd-2"), "'etcd-2' is not an address"),
        ((*LEAST, "--supervisors", "2"), "--supervisors 2: an odd number"),
        ((*LEAST, "--agents", "501"), "--agents 501: at most 500"),
        ((*LEAST, "--namespace", "Training"), "--namespace 'Training': use at most 63 small letters"),
        ((*LEAST, "--namespace", "n" * 36), "use at most 35 characters"),
        ((*LEAST, "--claim", "-x"), "--claim '-x'"),
        ((*LEAST, "--image", "a b"), "--image 'a b'"),
        ((*LEAST, "--interface", "eth0;"), "--interface 'eth0;'"),
        ((*LEAST, "--memory", "16G"), "--memory: "),
        ((*LEAST, "--reach", "10.1.0.7:8020-1"), "--reach '10.1.0.7:8020-1'"),
        ((*LEAST, "--reach", "namenode:8020"), "--reach 'namenode:8020'"),
        ((*LEAST, "--drain-as", "admin"), "name nobody of --user"),
        ((*LEAST, "--user", "bob"), "--user 'bob': write NAME:ROLE, the role one of viewer, submitter,"),
        ((*LEAST, "--user", "bob:root"), "--user 'bob:root': write NAME:ROLE"),
        ((*LEAST, "--user", ":admin"), "'' is no name of a user"),
        ((*LEAST, "--drain-as", "a@b"), "a Secret has no file with '@' in its name"),
        ((*LEAST, "--drain-as", "a b"), "'a b' is no name of a user"),
        (("a.b", *LEAST[1:]), "'a.b' is not a name for a pool"),
    ],
)
def test_mistakes_are_told_of(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(UserError) as error:
        manifests(*words)
    assert told in str(error.value)


def test_users_have_their_roles_and_a_certificate_each() -> None:
    printed = manifests(*LEAST, "--user", "ann:admin", "--user", "prometheus:viewer", "--drain-as", "keeper")
    for component, file in (("supervisor", "supervisor-1.yaml"), ("agent", "pool.yaml")):
        told = YAML(typ="safe").load(printed.find("ConfigMap", component)["data"][file])
        assert told["users"] == {
            "ann": {"role": "admin"},
            "prometheus": {"role": "viewer"},
            "keeper": {"role": "operator"},
        }
    assert printed.commands("supervisorctl")[0].endswith(" user:ann user:prometheus user:keeper")


def test_hdfs_has_to_be_reached(tmp_path: Path) -> None:
    conf = hadoop(tmp_path)[:2]
    with pytest.raises(UserError, match="--hadoop-conf needs --reach"):
        manifests(*LEAST, *conf)
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = ("--hadoop-conf", str(empty), "--reach", "10.1.0.0/16:8020")
    with pytest.raises(UserError, match=r"has none of core-site\.xml, hdfs-site\.xml"):
        manifests(*LEAST, *broken)
    (empty / "core-site.xml").write_text("<configuration>")
    with pytest.raises(UserError, match=r"core-site\.xml"):
        manifests(*LEAST, *broken)
    (empty / "core-site.xml").write_text(f"<configuration>{' ' * (129 << 10)}</configuration>")
    with pytest.raises(UserError, match="takes 128 KiB at most"):
        manifests(*LEAST, *broken)
