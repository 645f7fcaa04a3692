"""Hugging Face Trainer as one real rank: an epoch and an evaluation. Prints losses and rows as JSON."""

import json
import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import shardprep
from shardprep.adapters.transformers import ShardTrainer, causal_lm_inputs
from shardprep.torch import TorchLoader

ids: list[str] = []


class Noting(ShardTrainer):
    """Notes the rows that it trains on."""

    def inputs_of(self, batch):
        if self.model.training:
            ids.extend(batch.ids[: batch.real])
        return causal_lm_inputs(batch)


world = int(os.environ["WORLD_SIZE"])
arguments = TrainingArguments(
    sys.argv[2], use_cpu=True, report_to="none", num_train_epochs=1, logging_steps=1, save_strategy="no", disable_tqdm=True,
    gradient_accumulation_steps=2 * 2 // world, learning_rate=0.01, dataloader_pin_memory=False,
)  # fmt: skip
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=701, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0,
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip
dataset = shardprep.open(sys.argv[1], cache_dir=os.path.join(sys.argv[2], "cache"))
trainer = Noting(
    model=LlamaForCausalLM(config),
    args=arguments,
    train_dataset=TorchLoader(dataset.loader(batch_tokens=1_500, slots=2, accumulate=2)),
    eval_dataset=TorchLoader(dataset.loader("validation", batch_tokens=1_500, slots=2, shuffle=False)),
)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(json.dumps({"losses": losses, "ids": ids, "eval": trainer.evaluate()["eval_loss"]}), flush=True)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
