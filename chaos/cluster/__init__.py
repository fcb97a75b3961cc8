"""A cluster of nodes on one machine: each has its own network, processes and disk, and loses them at will."""

from chaos.cluster.cluster import Cluster, CommandFailed
from chaos.cluster.network import Network
from chaos.cluster.node import Daemon, Node
from chaos.cluster.shape import Shape

__all__ = ["Cluster", "CommandFailed", "Daemon", "Network", "Node", "Shape"]
