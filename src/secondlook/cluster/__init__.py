"""Cluster: chunks of a job computed by workers on a Ray cluster."""

from secondlook.cluster.ray_engine import RayEngine

__all__ = ["RayEngine"]
