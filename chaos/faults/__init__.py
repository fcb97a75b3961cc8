"""Every fault, by name."""

from __future__ import annotations

from chaos.faults.families import (
    agent,
    disk,
    docker,
    environment,
    etcd,
    gpu,
    hdfs,
    inside,
    many,
    node,
    store,
    supervisor,
    task,
)
from chaos.faults.fault import Fault

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for family in (
        task,
        agent,
        disk,
        supervisor,
        node,
        many,
        etcd,
        store,
        hdfs,
        docker,
        gpu,
        inside,
        environment,
    )
    for fault in family.FAULTS
}
