"""The mirror over a far link: beside boto3's copy, how soon a version is there, and what it saves."""
