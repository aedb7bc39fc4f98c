"""Trust: signing what is written, and believing only what is signed by a pinned key and contradicts nothing seen."""

from pulse_registry.signing.config import signer_of, trust_of
from pulse_registry.signing.guard import PinGuard
from pulse_registry.signing.keys import SigningKey
from pulse_registry.signing.last_seen import state_folder
from pulse_registry.signing.pinned_keys import Pin, Trust

__all__ = ["Pin", "PinGuard", "SigningKey", "Trust", "signer_of", "state_folder", "trust_of"]
