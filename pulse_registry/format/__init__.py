"""The stored objects, as bytes: keys, patches, keyframes, and the changes that a patch says."""
