"""The demo with engines: TRL trains a chat model, and real vLLM servers follow it while clients stream completions.

Four kinds of processes, each in the environment that it needs: a bucket (SeaweedFS), a trainer (TRL's GRPOTrainer with
`PulseCallback`), servers (vLLM with the backend ``pulse``), and a sidecar for each server (``pulse follow``). They
share nothing but the bucket. At the end each server's log-probabilities are compared with those of a fresh one that
loaded the newest version from disk, and knows no registry. ``make demo-vllm`` makes the environments and runs it.
"""
