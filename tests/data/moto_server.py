"""moto's S3 server with the bucket that the argument names: prints its address, and serves until its stdin ends."""
import os
import sys

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
address = f"http://{host}:{port}"
boto3.client("s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="test",
             aws_secret_access_key="test").create_bucket(Bucket=sys.argv[1])
print(address, flush=True)
sys.stdin.read()
os._exit(0)
