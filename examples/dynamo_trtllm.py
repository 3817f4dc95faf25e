"""Dynamo's own TensorRT-LLM worker with this client; takes the arguments of `python -m dynamo.trtllm`."""

import runpy

from worker_client.dynamo_trtllm import adopt_handlers

if __name__ == "__main__":
    adopt_handlers()
    runpy.run_module("dynamo.trtllm", run_name="__main__", alter_sys=True)
