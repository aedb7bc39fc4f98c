"""Make a bucket unless it is there: ``python make_bucket.py NAME``. Endpoint and keys are the AWS SDKs' variables."""

from __future__ import annotations

import sys

import boto3
from botocore.exceptions import ClientError

OURS = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


def make_bucket(name: str) -> str:
    """Make the bucket, and say what was done."""
    try:
        boto3.client("s3").create_bucket(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in OURS:
            raise
        return f"bucket {name} is there"
    return f"bucket {name} is made"


if __name__ == "__main__":
    print(make_bucket(sys.argv[1]))
