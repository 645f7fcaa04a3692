"""s3_cat.py s3://bucket/key: the object's bytes to standard output, as `aws s3 cp URL -` has them."""

import os
import sys

import boto3

bucket, key = sys.argv[1][5:].split("/", 1)
body = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).get_object(Bucket=bucket, Key=key)["Body"]
for chunk in body.iter_chunks(1 << 20):
    sys.stdout.buffer.write(chunk)
