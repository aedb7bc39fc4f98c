"""Following: what watches a run, and brings an engine, a folder or a command to its versions."""

from pulse_registry.follow.adapter import AdapterEngine
from pulse_registry.follow.command import CommandEngine
from pulse_registry.follow.engine import Engine, EngineFailed, EngineRefused
from pulse_registry.follow.folder import FolderEngine
from pulse_registry.follow.follower import Follower
from pulse_registry.follow.pace import Pace
from pulse_registry.follow.sglang import SglangEngine
from pulse_registry.follow.told import Changed, Failed
from pulse_registry.follow.vllm import VllmEngine

__all__ = [
    "AdapterEngine",
    "Changed",
    "CommandEngine",
    "Engine",
    "EngineFailed",
    "EngineRefused",
    "Failed",
    "FolderEngine",
    "Follower",
    "Pace",
    "SglangEngine",
    "VllmEngine",
]
