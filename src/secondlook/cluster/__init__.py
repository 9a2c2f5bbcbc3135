"""Cluster: chunks of a job computed by workers on a Ray cluster."""

from secondlook.cluster.ranking import rank_on_cluster, read_masses
from secondlook.cluster.ray_engine import RayEngine

__all__ = ["RayEngine", "rank_on_cluster", "read_masses"]
