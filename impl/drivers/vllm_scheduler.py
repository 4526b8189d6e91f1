"""vLLM's own scheduler, driven by an engine trace; runs inside an interpreter that has vLLM.

    /path/to/venv/bin/python vllm_scheduler.py < trace.engine.json

Needs nothing of evictcheck's, and no GPU: the platform is set to the CPU one before use, the model is a small
local OPT configuration, the KV cache is counted and never made. For each move it prints one line of JSON: what was
scheduled (request -> [start, end]), encoded, reported as freed, what a worker that obeys is missing, and what the
manager calls cached against what that worker holds. Rules other than the installed release's, worker orders, chunk
limits, placeholders and items with markers are not imitated.

Known to work with vLLM 0.33.0 (`pip install --no-deps`), a CPU build of torch and vLLM's common requirements:
several gigabytes, so not part of CI.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "ffn_dim": 64,
    "max_position_embeddings": 128,
    "vocab_size": 512,
    "word_embed_proj_dim": 64,
    "torch_dtype": "float32",
}
_BLOCKS, _BLOCK_SIZE, _LONGEST = 1000, 16, 64


class Ride:
    """One scheduler, and a worker that drops, encodes and gathers by its word."""

    def __init__(self, scene: dict[str, Any], folder: Path) -> None:
        self._prompts = {prompt["request_id"]: prompt for prompt in scene["requests"]}
        self._requests: dict[str, Any] = {}
        self._tensors: set[str] = set()
        self._arrived = 0
        self._answers: list[bool] = []
        self._scheduler = _scheduler(scene["setup"], folder)
        granted = self._scheduler.kv_cache_manager.allocate_slots

        def allocate_slots(*arguments: Any, **named: Any) -> Any:
            """KV blocks run out as the trace has it."""
            return granted(*arguments, **named) if not self._answers or self._answers.pop(0) else None

        self._scheduler.kv_cache_manager.allocate_slots = allocate_slots

    def take(self, move: dict[str, Any]) -> dict[str, Any]:
        """Takes a move of an engine trace; what it did."""
        done: dict[str, Any] = {"move": move["move"]}
        match move["move"]:
            case "arrive":
                self._arrive(self._prompts[move["request_id"]])
            case "abort":
                from vllm.v1.request import RequestStatus  # type: ignore[import-not-found]

                self._scheduler.finish_requests([move["request_id"]], RequestStatus.FINISHED_ABORTED)
            case "change-weights":
                self._scheduler.reset_encoder_cache()
                self._tensors.clear()
            case _:
                done |= self._pass(move)
        cached = self._scheduler.encoder_cache_manager.cached
        waiting = {request.request_id for request in self._scheduler.waiting}
        return done | {
            "cached": sorted(cached),
            "tensors": sorted(self._tensors),
            "held by waiting": sorted({mm_hash for mm_hash, holders in cached.items() if holders & waiting}),
        }

    def _arrive(self, prompt: dict[str, Any]) -> None:
        from vllm.multimodal.inputs import (  # type: ignore[import-not-found]
            MultiModalFeatureSpec,
            PlaceholderRange,
        )
        from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]
        from vllm.v1.request import Request

        self._arrived += 1
        features = [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=item["mm_hash"],
                mm_position=PlaceholderRange(offset=item["offset"], length=item["length"]),
            )
            for item in prompt["items"]
        ]
        request = Request(
            request_id=prompt["request_id"],
            prompt_token_ids=list(range(10, 10 + prompt["tokens"])),
            sampling_params=SamplingParams(max_tokens=prompt["outputs"], ignore_eos=True),
            pooling_params=None,
            mm_features=features,
            arrival_time=float(self._arrived),
            priority=prompt["priority"],
        )
        self._requests[request.request_id] = request
        self._scheduler.add_request(request)

    def _pass(self, move: dict[str, Any]) -> dict[str, Any]:
        from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found]

        self._scheduler.max_num_scheduled_tokens = move["tokens"]
        self._answers[:] = move["kv"]
        step = self._scheduler.schedule()
        start = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        known = step.scheduled_cached_reqs
        start |= dict(zip(known.req_ids, known.num_computed_tokens, strict=True))
        ends = {name: start[name] + tokens for name, tokens in step.num_scheduled_tokens.items()}
        encoded = [
            self._requests[name].mm_features[input_id].identifier
            for name, inputs in step.scheduled_encoder_inputs.items()
            for input_id in inputs
        ]
        self._tensors -= set(step.free_encoder_mm_hashes)
        self._tensors |= set(encoded)
        done = {
            "scheduled": {name: [start[name], end] for name, end in ends.items()},
            "encoded": encoded,
            "reported": sorted(step.free_encoder_mm_hashes),
            "missing": [
                [name, feature.identifier]
                for name, end in ends.items()
                for feature in self._requests[name].mm_features
                if feature.mm_position.offset < end
                and feature.mm_position.offset + feature.mm_position.length > start[name]
                and feature.identifier not in self._tensors
            ],
        }
        names = list(ends)
        self._scheduler.update_from_output(
            step,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: place for place, name in enumerate(names)},
                sampled_token_ids=[[7] if ends[name] >= self._requests[name].num_tokens else [] for name in names],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        return done


def _scheduler(setup: dict[str, Any], folder: Path) -> Any:
    import torch  # type: ignore[import-not-found]
    from vllm.config import (  # type: ignore[import-not-found]
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager  # type: ignore[import-not-found]
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]
    from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found]
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found]

    (folder / "config.json").write_text(json.dumps(_OPT), "utf-8")
    scheduling = SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=_LONGEST,
        max_model_len=_LONGEST,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        policy="priority" if setup["policy"] == "priority" else "fcfs",
        async_scheduling=False,
    )
    # Set after construction: the check of the token budget would be made for a model without items.
    scheduling.disable_chunked_mm_input = not setup["split_items"]
    cache = CacheConfig(block_size=_BLOCK_SIZE, enable_prefix_caching=False)
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=_LONGEST, seed=0
        ),
        scheduler_config=scheduling,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    cache.num_gpu_blocks = _BLOCKS
    attention = FullAttentionSpec(block_size=_BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=_BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=_BLOCK_SIZE,
    )
    # OPT takes no items: what a multimodal model would have set.
    scheduler.max_num_encoder_input_tokens = setup["compute_budget"] or setup["capacity"]
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=setup["capacity"])
    scheduler.num_prefill_lookahead = setup["look_ahead"]
    return scheduler


def main() -> None:
    """Reads an engine trace from standard input and prints what vLLM's scheduler does with it."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import vllm.platforms  # type: ignore[import-not-found]
        from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]
    except ImportError as error:
        sys.exit(f"this interpreter has no working vLLM ({error}); run it with the Python of one that has")
    vllm.platforms._current_platform = CpuPlatform()
    trace = json.load(sys.stdin)["trace"]
    if any(item["embeds_at"] for prompt in trace["scene"]["requests"] for item in prompt["items"]):
        sys.exit("the trace has items with markers, which this driver does not imitate")
    with tempfile.TemporaryDirectory() as folder:
        ride = Ride(trace["scene"], Path(folder))
        for move in trace["moves"]:
            done = ride.take(move)
            print(json.dumps(done), flush=True)
            if done.get("missing"):
                return


if __name__ == "__main__":
    main()
