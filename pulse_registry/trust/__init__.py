"""Trust: signing what is written, and believing only what is signed by a pinned key and contradicts nothing seen."""

from pulse_registry.trust.given import signer_of, trust_of
from pulse_registry.trust.guard import PinGuard
from pulse_registry.trust.keys import SigningKey
from pulse_registry.trust.memory import state_folder
from pulse_registry.trust.pins import Pin, Trust

__all__ = ["Pin", "PinGuard", "SigningKey", "Trust", "signer_of", "state_folder", "trust_of"]
