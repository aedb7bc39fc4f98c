"""How the ranks of a sharded model talk: collectives, which all ranks call in the same order, and the vote.

`pulse_registry.peers.torch_peers` is apart, since it imports torch.
"""

from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.peers.peers import COORDINATOR, Bytes, Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt, agree

__all__ = ["COORDINATOR", "Attempt", "Bytes", "LocalGroup", "LocalPeers", "Peers", "agree", "run_ranks", "sum_lanes"]
