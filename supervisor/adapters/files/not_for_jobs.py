"""Keys of docker's API, its command line and compose files, with the reason why a job file has no such key.

Every unknown key is refused. For these the error has the reason in place of a list of known keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.adapters.files.yaml_file import spelling

_RIGHTS = "would give the task rights on its node, which no job gets; remove it"
_NAMESPACE = "would let the task see or disturb what else runs on its node, which no job may; remove it"
_NODE = "is for the node's operator to decide, in the agent's configuration (docs/docker.md); remove it"
_OURS = "is decided by tf-supervisor for each container; remove it"
_MOUNTS = "is not for jobs; write container.mounts: [{source: /DIR, target: /DIR}]"
_RESOURCES = "is asked for each role: write roles.NAME.resources.{}"
_CONTAINER = "is the same for all roles: write container.{}, at the top of the file"
_INSTEAD = "is not a key here; write {}"


def _reasons() -> Mapping[str, str]:
    groups = {
        _RIGHTS: "privileged capadd capdrop caps capabilities securityopt devices device devicecgrouprules "
        "devicecgrouprule devicerequests user usernsmode userns groupadd sysctls sysctl useapisocket "
        "credentialspec apparmor seccomp rootless nonewprivileges maskedpaths readonlypaths allowprivileged",
        _NAMESPACE: "pid pidmode hostpid ipc ipcmode hostipc uts utsmode cgroup cgroupns cgroupnsmode "
        "cgroupparent hostnetwork networkmode networks networkingconfig links link",
        _NODE: "runtime isolation dns dnsopt dnsoption dnsoptions dnssearch extrahosts addhost logconfig "
        "logging logdriver logopt loggingdriver storageopt volumedriver blkioweight blkioweightdevice "
        "devicereadbps devicewritebps devicereadiops devicewriteiops cpurtperiod cpurtruntime "
        "cpurealtimeperiod cpurealtimeruntime iomaximumbandwidth iomaximumiops iomaxbandwidth iomaxiops "
        "usecproxyconfig useconfigproxy credentials registryauth auth secrets configs platform",
        _OURS: "readonly readonlyrootfs restartpolicy autoremove rm init initpath oomkilldisable "
        "oomscoreadj hostname domainname macaddress ports portbindings publish publishallports exposedports "
        "expose tty stdinopen openstdin stdinonce interactive attachstdin attachstdout attachstderr attach "
        "detach detachkeys healthcheck nohealthcheck healthcmd healthinterval healthretries healthtimeout "
        "healthstartperiod healthstartinterval stopsignal stoptimeout containername containeridfile cidfile "
        "networkdisabled networkalias ip ip6 linklocalip sigproxy annotations annotation label "
        "onbuild shell lxcconf version consolesize argsescaped cpupercent cpucount contenttrust "
        "disablecontenttrust quiet hostconfig",
        _MOUNTS: "binds bind volumes volume volumesfrom tmpfs mount",
        _RESOURCES.format("cpus"): "cpus cpuperiod cpuquota cpushares nanocpus",
        _RESOURCES.format("memory"): "memory memlimit memreservation memoryreservation kernelmemory "
        "kernelmemorytcp memswappiness memoryswappiness",
        **{_RESOURCES.format(name): spelling(name) for name in ("gpus", "gpu_memory", "gpu_model")},
        **{_RESOURCES.format(name): spelling(name) for name in ("gpu_share", "gpu_indices")},
        _RESOURCES.format("labels"): "labels",
        **{_CONTAINER.format(name): name for name in ("image", "pull", "python", "network", "mounts")},
        _CONTAINER.format("swap"): "swap memoryswap memswaplimit memswap",
        _CONTAINER.format("shm"): "shm shmsize",
        _CONTAINER.format("pids"): "pids pidslimit",
        _CONTAINER.format("ulimits"): "ulimits ulimit",
        _CONTAINER.format("cpuset"): "cpuset cpusetcpus cpusetmems",
        _INSTEAD.format("container, once for all roles, at the top of the file"): "container",
        _INSTEAD.format("env, at the top of the file or for a role"): "environment envfile labelfile env",
        _INSTEAD.format("command, at the top of the file or for a role"): "entrypoint cmd command",
        _INSTEAD.format("code: {dir: DIRECTORY}; tasks run there"): "workingdir workdir",
        "is not for jobs: a mount has source, target and read_only alone": "type propagation bindoptions "
        "volumeoptions tmpfsoptions bindpropagation nonrecursive consistency nocopy driverconfig "
        "subpath tmpfssize tmpfsmode mode createhostpath readonlynonrecursive readonlyforcerecursive "
        "imageoptions clusteroptions",
    }
    return {word: reason for reason, words in groups.items() for word in words.split()}


NOT_FOR_JOBS = _reasons()
