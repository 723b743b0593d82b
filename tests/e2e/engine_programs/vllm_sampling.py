"""Samples with vLLM: vllm_sampling.py MODEL PROMPTS_JSON OUT_JSON [OPTIONS_JSON]. Prefills come in chunks of 32 tokens; prompts share a prefix, which
is cached. Options: those of LLM; "step": the engine runs in this process, whose weights are those of that step of a trainer; "sent": the same, and it
samples in the step after what the prompts end with."""

import json
import sys

from vllm import LLM, SamplingParams


def main() -> None:
    model, prompts, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    options = {"dtype": "float32", **(json.loads(sys.argv[4]) if len(sys.argv) > 4 else {})}
    agent, sent = None, "sent" in options
    if sent or "step" in options:
        import statagent

        agent = statagent.init(required=True)
        agent.set_step(options.pop("sent" if sent else "step"))
    engine = LLM(
        model=model, skip_tokenizer_init=True, enforce_eager=True, enable_prefix_caching=True, block_size=32,
        max_num_batched_tokens=32, max_num_seqs=8, max_model_len=256, **options,
    )  # fmt: skip
    if agent is not None and sent:
        agent.end_step()
    sequences, logprobs, cached = [], [], 0
    for batch in (prompts, prompts[:1]):  # the second time most of it is in the cache
        ends = [{prompt[-1]: 100.0} if sent else None for prompt in batch]  # which makes sure of it
        parameters = [
            SamplingParams(max_tokens=1 if sent else 8, temperature=1.0, logprobs=1, detokenize=False, logit_bias=end)
            for end in ends
        ]
        asked = [{"prompt_token_ids": prompt[:-1] if sent else prompt} for prompt in batch]
        for done in engine.generate(asked, parameters):
            made = done.outputs[0]
            sequences.append([*done.prompt_token_ids, *made.token_ids])
            logprobs.append([chosen[token].logprob for token, chosen in zip(made.token_ids, made.logprobs)])
            cached += done.num_cached_tokens or 0
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"sequences": sequences, "logprobs": logprobs, "cached": cached}, file)
    if agent is not None:
        assert agent.close(timeout=60), agent.counters()


if __name__ == "__main__":  # vLLM starts processes that import this file
    main()
